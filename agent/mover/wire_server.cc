#include "agent/mover/wire_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/mover/kv_wire.h"
#include "agent/mover/wire_cut.h"
#include "agent/mover/wire_order.h"
#include "agent/mover/wire_talk.h"

namespace tangram::mover {
namespace {

constexpr size_t kToken = 16;
constexpr std::chrono::milliseconds kTurnLook{5};
// Maximum idle time of a reader's channel: the duration of an attempt.
constexpr std::chrono::milliseconds kIdle{600'000};

}  // namespace

// One reader's connection.
class WireServer::Session {
 public:
  Session(WireServer* server, std::unique_ptr<net::Stream> stream)
      : server_(*server),
        secure_(stream->secure()),
        pod_(stream->pod()),
        talk_(std::move(stream), *server->options_.patience.time) {}

  void Run(const std::stop_token& stop) {
    Status status = Open(stop);
    while (status.ok()) status = Next(stop);
    wire_.reset();
    if (hung_up_) return;  // normal end
    spdlog::warn("comm channel failed pod={} error=\"{}\"", pod_, status.message());
    (void)talk_.Say(Said::kRefused, WireBody().Add(status.message()).bytes(), stop);
  }

 private:
  const WirePatience& patience() const { return server_.options_.patience; }

  Status Open(const std::stop_token& stop) {
    auto hello = talk_.Expect(Said::kHello, patience().connect, stop);
    if (!hello.ok()) return hello.status();
    const std::string text(hello->begin(), hello->end());
    const size_t end = text.find('\0');
    device::Wires& wires = *server_.options_.wires;
    if (end == std::string::npos || text.substr(0, end) != wires.kind()) {
      return {Code::kInvalid,
              fmt::format("comm library mismatch: this agent uses {}, the peer uses '{}'",
                          wires.kind(), text.substr(0, std::min<size_t>(end, 64)))};
    }
    std::string answer;
    auto wire = wires.Accept(text.substr(end + 1), &answer);
    if (!wire.ok()) return wire.status();
    wire_ = std::move(wire).value();
    TANGRAM_RETURN_IF_ERROR(talk_.Say(Said::kAnswer, WireBody().Add(answer).bytes(), stop));
    TANGRAM_RETURN_IF_ERROR(talk_.Until([&] { return wire_->Open(); }, patience().connect,
                                        "connecting the comm channel", stop));
    return talk_.Say(Said::kOpen, {}, stop);
  }

  Status Next(const std::stop_token& stop) {
    std::optional<Word> word;
    const Status waited = talk_.Until(
        [&]() -> Result<bool> {
          auto heard = talk_.Heard();
          if (!heard.ok()) return heard.status();
          word = std::move(heard).value();
          return word.has_value();
        },
        kIdle, "waiting for a request on the comm channel", stop);
    if (!waited.ok()) {
      hung_up_ = true;
      return waited;
    }
    std::span<const uint8_t> body(word->body);
    switch (word->said) {
      case Said::kPieces: {
        TANGRAM_RETURN_IF_ERROR(Redeem(&body, false));
        const Grant grant = std::exchange(grant_, {});
        return Send(&body, grant.pieces, grant.lease, stop);
      }
      case Said::kKv:
        return Redeem(&body, true);
      case Said::kRead: {
        auto rest = body;  // after the cut
        TANGRAM_RETURN_IF_ERROR(TakeCut(&rest).status());
        const auto ranges = RangesOf(rest, grant_.kv);
        if (!ranges.ok()) return ranges.status();
        return Send(&body, *ranges, grant_.lease, stop);
      }
      default:
        return {Code::kInvalid,
                fmt::format("unexpected message type {} from the reader of the comm channel",
                            static_cast<uint32_t>(word->said))};
    }
  }

  Status Redeem(std::span<const uint8_t>* body, bool kv) {
    std::optional<std::string> pod;
    if (secure_) pod = pod_;
    if (body->size() < kToken) return {Code::kInvalid, "comm control message has no token"};
    const std::string token(body->begin(), body->begin() + kToken);
    *body = body->subspan(kToken);
    auto grant = server_.grants_->Redeem(token, pod);
    if (!grant || grant->shown || (grant->kv.bytes > 0) != kv) {
      return {
          Code::kUnauthenticated,
          fmt::format(
              "pod '{}' used a token that is unknown, expired, of another pod or of another kind",
              pod.value_or("?"))};
    }
    grant_ = std::move(*grant);
    return OkStatus();
  }

  // Runs a step while the granted memory stays in place.
  static Status Under(const std::shared_ptr<Lease>& lease, const std::function<Status()>& step) {
    Status status;
    if (lease == nullptr) return step();
    if (lease->Use([&] { status = step(); })) return status;
    return {Code::kUnavailable, "the granted memory was released"};
  }

  Status Send(std::span<const uint8_t>* body, std::span<const device::Memory> memories,
              const std::shared_ptr<Lease>& lease, const std::stop_token& stop) {
    const auto cut = TakeCut(body);
    if (!cut.ok()) return cut.status();
    CutWalk walk(memories);
    const auto pack = [&](size_t i) {
      return Under(lease, [&] { return Pack(&walk, (*cut)[i], i); });
    };
    WireSource order;
    const auto act = [&](WireEvent event) {
      const WireAct next = order.On(event);
      if (next == WireAct::kAbort || next == WireAct::kAbortBare) wire_->Abort();
      if (next == WireAct::kAbort || next == WireAct::kGiveBack)
        server_.options_.turns->sends.Give();
    };
    act(WireEvent::kAsked);
    // Packs the first messages before it gets the turn.
    constexpr size_t kBuffers = device::Wire::kBuffers;
    Status status;
    for (size_t i = 0; status.ok() && i < std::min(cut->size(), kBuffers); ++i) status = pack(i);
    uint64_t digest = 0;
    if (status.ok() && grant_.kv.bytes > 0) status = Digest(memories, lease, &digest);
    if (status.ok()) {
      status = talk_.Until([&] { return server_.options_.turns->sends.TakeWithin(kTurnLook); },
                           patience().turn, "waiting for the send lock", stop);
    }
    if (status.ok()) {
      act(WireEvent::kTurn);
      status = Post(*cut, pack, stop);
    }
    if (status.ok() && !walk.over()) {
      status = {Code::kInvalid, "the comm messages do not cover all bytes"};
    }
    act(status.ok() ? WireEvent::kDone : WireEvent::kBroken);
    TANGRAM_RETURN_IF_ERROR(status);
    ++server_.batches_;
    return talk_.Say(Said::kOver, WireBody().Add(digest).bytes(), stop);
  }

  Status Post(const Cut& cut, const std::function<Status(size_t)>& pack,
              const std::stop_token& stop) {
    constexpr size_t kBuffers = device::Wire::kBuffers;
    TANGRAM_RETURN_IF_ERROR(talk_.Say(Said::kGo, {}, stop));
    for (size_t i = 0; i < std::min(cut.size(), kBuffers); ++i) {
      TANGRAM_RETURN_IF_ERROR(wire_->Send(i, cut[i]));
    }
    for (size_t i = 0; i < cut.size(); ++i) {
      const size_t buffer = i % kBuffers;
      TANGRAM_RETURN_IF_ERROR(
          talk_.Until([&] { return wire_->Done(buffer); }, patience().bytes,
                      fmt::format("transfer of {} bytes over the comm channel", cut[i]), stop));
      if (i + kBuffers >= cut.size()) continue;
      TANGRAM_RETURN_IF_ERROR(pack(i + kBuffers));
      TANGRAM_RETURN_IF_ERROR(wire_->Send(buffer, cut[i + kBuffers]));
    }
    return OkStatus();
  }

  Status Pack(CutWalk* walk, uint64_t bytes, size_t message) {
    const device::Memory buffer = wire_->Buffer(message % device::Wire::kBuffers);
    if (bytes == 0 || bytes > buffer.bytes) {
      return {Code::kInvalid,
              fmt::format("invalid comm message of {} bytes for a buffer of {} bytes", bytes,
                          buffer.bytes)};
    }
    const auto parts = walk->Next(bytes);
    if (!parts.ok()) return parts.status();
    std::vector<device::CopyOp> copies;
    for (const CutWalk::Part& part : *parts) {
      copies.push_back({buffer.Part(part.in_message, part.part.bytes), part.part});
    }
    TANGRAM_RETURN_IF_ERROR(buffer.device->Copy(copies).Wait());
    if (message > 0 || grant_.kv.bytes > 0) return OkStatus();
    switch (fault::Hit("data.before_send")) {
      case fault::Action::kError:
        return {Code::kInternal, "fault point data.before_send"};
      case fault::Action::kCorrupt:
        return Spoil(buffer);
      case fault::Action::kNone:
        return OkStatus();
    }
    return OkStatus();
  }

  static Status Spoil(const device::Memory& buffer) {
    std::byte first{};
    const device::Memory own = device::Memory::Own({&first, 1});
    const device::CopyOp out{own, FirstByte(buffer)}, back{FirstByte(buffer), own};
    TANGRAM_RETURN_IF_ERROR(buffer.device->Copy({&out, 1}).Wait());
    first ^= std::byte{1};
    return buffer.device->Copy({&back, 1}).Wait();
  }

  static Status Digest(std::span<const device::Memory> ranges, const std::shared_ptr<Lease>& lease,
                       uint64_t* out) {
    std::vector<uint64_t> hashes(ranges.size());
    TANGRAM_RETURN_IF_ERROR(Under(lease, [&] { return HashAll(ranges, hashes); }));
    KvDigest digest;
    for (const uint64_t hash : hashes) digest.Add(hash);
    *out = digest.Value();
    return OkStatus();
  }

  WireServer& server_;
  const bool secure_;
  const std::string pod_;
  WireTalk talk_;
  std::unique_ptr<device::Wire> wire_;
  Grant grant_;
  bool hung_up_ = false;
};

WireServer::WireServer(Options options, Grants* grants)
    : options_(std::move(options)), grants_(grants) {}

WireServer::~WireServer() = default;

void WireServer::Take(std::unique_ptr<net::Stream> stream) {
  const std::scoped_lock lock(mu_);
  std::erase_if(workers_, [](const Worker& worker) { return worker.over.load(); });
  if (sessions_ >= options_.most) {
    spdlog::warn("comm channel rejected, too many are open pod={} limit={}", stream->pod(),
                 options_.most);
    return;  // the connection ends
  }
  Worker& worker = workers_.emplace_back();
  ++sessions_;
  auto session = std::make_shared<Session>(this, std::move(stream));
  try {
    worker.thread = std::jthread(
        [this, &worker, session = std::move(session)](const std::stop_token& stop) mutable {
          session->Run(stop);
          session.reset();
          --sessions_;
          worker.over = true;
        });
  } catch (const std::system_error& e) {
    spdlog::error("comm channel rejected, cannot start a thread error=\"{}\"", e.what());
    --sessions_;
    workers_.pop_back();
  }
}

}  // namespace tangram::mover
