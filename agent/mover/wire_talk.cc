#include "agent/mover/wire_talk.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "agent/mover/transport.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

using std::chrono::microseconds;

// Maximum body: a KV read of the maximum number of ranges, and its cut.
constexpr size_t kMostBody = 64 + size_t{kMostRanges} * (12 + 8);
// Time between polls: short at first, since most waits end soon.
constexpr microseconds kFirstLook{20}, kLastLook{500};

net::FrameReader Frames() {
  return {2 * sizeof(uint32_t), [](std::span<const std::byte> header) -> Result<size_t> {
            uint32_t bytes = 0;
            std::memcpy(&bytes, header.data() + sizeof bytes, sizeof bytes);
            if (bytes > kMostBody) {
              return Status{Code::kInvalid,
                            fmt::format("comm control message of {} bytes is too long", bytes)};
            }
            return bytes;
          }};
}

}  // namespace

WireTalk::WireTalk(std::unique_ptr<net::Stream> stream, TimeSource& time)
    : time_(time), stream_(std::move(stream)), frame_(Frames()) {}

Status WireTalk::Begin(const std::stop_token& stop) {
  return net::WriteAll(*stream_, std::as_bytes(std::span(kWireToken)), stop);
}

Status WireTalk::Say(Said said, std::span<const std::byte> body, const std::stop_token& stop) {
  WireBody frame;
  frame.Add(static_cast<uint32_t>(said)).Add(static_cast<uint32_t>(body.size())).Add(body);
  return net::WriteAll(*stream_, frame.bytes(), stop);
}

Result<std::optional<Word>> WireTalk::Heard() {
  if (early_) return std::exchange(early_, std::nullopt);
  TANGRAM_RETURN_IF_ERROR(frame_.Read(*stream_));
  if (!frame_.whole()) return std::optional<Word>();
  uint32_t said = 0;
  std::memcpy(&said, frame_.header().data(), sizeof said);
  Word word{static_cast<Said>(said), frame_.Take()};
  if (word.said != Said::kRefused) return std::optional(std::move(word));
  return Status(Code::kUnavailable,
                "the peer of the comm channel: " + std::string(word.body.begin(), word.body.end()));
}

Status WireTalk::Until(const std::function<Result<bool>()>& there, std::chrono::milliseconds most,
                       const std::string& what, const std::stop_token& stop) {
  const auto end = time_.Now() + most;
  for (microseconds look = kFirstLook;; look = std::min(2 * look, kLastLook)) {
    // Checked before the poll: data that arrived while this process slept is not late.
    const bool late = time_.Now() > end;
    const auto found = there();
    if (!found.ok()) return found.status();
    if (*found) return OkStatus();
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    if (late) {
      return {Code::kUnavailable, fmt::format("{} took longer than {} ms", what, most.count())};
    }
    if (!early_) {
      auto heard = Heard();
      if (!heard.ok()) return heard.status();
      early_ = std::move(heard).value();
    } else if (stream_->Disturbed()) {
      return {Code::kUnavailable, "the peer of the comm channel disconnected"};
    }
    std::this_thread::sleep_for(look);
  }
}

Result<std::vector<uint8_t>> WireTalk::Expect(Said said, std::chrono::milliseconds most,
                                              const std::stop_token& stop) {
  std::optional<Word> word;
  TANGRAM_RETURN_IF_ERROR(Until(
      [&]() -> Result<bool> {
        auto heard = Heard();
        if (!heard.ok()) return heard.status();
        word = std::move(heard).value();
        return word.has_value();
      },
      most, "waiting for the peer of the comm channel", stop));
  if (word->said == said) return std::move(word->body);
  return Status(
      Code::kUnavailable,
      fmt::format("unexpected message type {} from the peer of the comm channel, expected {}",
                  static_cast<uint32_t>(word->said), static_cast<uint32_t>(said)));
}

Result<Cut> TakeCut(std::span<const uint8_t>* body) {
  uint32_t count = 0;
  if (body->size() >= sizeof count) {
    std::memcpy(&count, body->data(), sizeof count);
    *body = body->subspan(sizeof count);
    Cut out(std::min<size_t>(count, body->size() / sizeof(uint64_t)));
    if (out.size() == count) {
      if (count > 0) std::memcpy(out.data(), body->data(), count * sizeof out[0]);
      *body = body->subspan(count * sizeof(uint64_t));
      return out;
    }
  }
  return Status(Code::kInvalid, "comm control message is shorter than announced");
}

}  // namespace tangram::mover
