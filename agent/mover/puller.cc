#include "agent/mover/puller.h"

#include <fmt/format.h>

#include <cstring>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/mover/data_server.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

const fault::Point kAfterFetch("stage.after_fetch", fault::kErrors | fault::kCorruption);
const fault::Point kBeforeKv("kv.before_pull", fault::kErrors);

}  // namespace

Status PullPieces(const std::shared_ptr<net::Credentials>& credentials, const std::string& data,
                  const std::string& token, std::span<const Target> targets,
                  const std::stop_token& stop, const std::function<void(uint64_t)>& done) {
  auto connected = net::Connect(data, credentials, stop);
  if (!connected.ok()) return connected.status();
  net::Stream& stream = **connected;
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(stream, std::as_bytes(std::span(token)), stop));
  for (size_t i = 0; i < targets.size(); ++i) {
    const device::Memory& to = targets[i].to;
    const auto receive = [&](std::span<std::byte> bytes) -> Status {
      TANGRAM_RETURN_IF_ERROR(net::ReadAll(stream, bytes, stop));
      switch (fault::Hit("stage.after_fetch")) {
        case fault::Action::kCorrupt:
          bytes[0] ^= std::byte{1};
          return OkStatus();
        case fault::Action::kError:
          return {Code::kUnavailable, "fault point stage.after_fetch"};
        case fault::Action::kNone:
          break;
      }
      return OkStatus();
    };
    TANGRAM_RETURN_IF_ERROR(device::Fill(to, receive));
    uint64_t hash = 0;
    TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hash));
    if (hash != targets[i].hash) {
      return {Code::kCorrupt,
              fmt::format("unit {} of {} from {} differs from its hash", i, targets.size(), data)};
    }
    done(to.bytes);
  }
  return OkStatus();
}

Status KvReaders::Warm(const v1::Header& header, const v1::PeerAddress& peer) {
  if (connections_.contains(peer.member())) return OkStatus();
  v1::OpenPullRequest request;
  *request.mutable_header() = header;
  request.set_rank(peer.rank());
  request.set_member(peer.member());
  request.set_kv(true);
  const auto opened = opener_(peer.agent(), request);
  if (!opened.ok()) return opened.status();
  auto stream = net::Connect(peer.data(), credentials_, {});
  if (!stream.ok()) return stream.status();
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(**stream, std::as_bytes(std::span(opened->token())), {}));
  connections_.emplace(peer.member(), std::move(stream).value());
  return OkStatus();
}

Status KvReaders::Ask(const v1::Header& header, const v1::PeerAddress& peer,
                      std::span<const Range> ranges) {
  std::vector<std::byte> request(4 + ranges.size() * 12);
  const auto count = static_cast<uint32_t>(ranges.size());
  std::memcpy(request.data(), &count, sizeof count);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto length = static_cast<uint32_t>(ranges[i].to.bytes);
    std::memcpy(request.data() + 4 + i * 12, &ranges[i].source_offset, 8);
    std::memcpy(request.data() + 4 + i * 12 + 8, &length, 4);
  }
  // The source closes what was silent for long; a fresh connection is as good. A first write after
  // that still succeeds, and what it asked for is lost, so this is asked before.
  if (const auto it = connections_.find(peer.member());
      it != connections_.end() && it->second->Disturbed()) {
    connections_.erase(it);
  }
  TANGRAM_RETURN_IF_ERROR(Warm(header, peer));
  Status sent = net::WriteAll(*connections_.at(peer.member()), request, {});
  if (sent.ok()) return sent;
  connections_.erase(peer.member());
  TANGRAM_RETURN_IF_ERROR(Warm(header, peer));
  return net::WriteAll(*connections_.at(peer.member()), request, {});
}

Result<uint64_t> KvReaders::Read(
    const v1::Header& header,
    const std::vector<std::pair<v1::PeerAddress, std::vector<Range>>>& jobs) {
  if (Status fault = fault::Check("kv.before_pull"); !fault.ok()) return fault;
  uint64_t bytes = 0;
  // Rounds, so that no request exceeds what a server takes.
  for (size_t from = 0, more = 1; more != 0; from += kMostRanges) {
    more = 0;
    const auto window = [&](const std::vector<Range>& ranges) -> std::span<const Range> {
      if (from >= ranges.size()) return {};
      return std::span(ranges).subspan(from, std::min<size_t>(kMostRanges, ranges.size() - from));
    };
    for (const auto& [peer, ranges] : jobs) {
      if (window(ranges).empty()) continue;
      if (Status status = Ask(header, peer, window(ranges)); !status.ok()) return status;
    }
    for (const auto& [peer, ranges] : jobs) {
      for (const Range& range : window(ranges)) {
        net::Stream& stream = *connections_.at(peer.member());
        const auto read = [&](std::span<std::byte> bytes) {
          return net::ReadAll(stream, bytes, {});
        };
        if (Status status = device::Fill(range.to, read); !status.ok()) {
          connections_.erase(peer.member());
          return Status(status.code(),
                        fmt::format("KV of {}: {}", peer.member(), status.message()));
        }
        bytes += range.to.bytes;
      }
      more |= static_cast<size_t>(ranges.size() > from + kMostRanges);
    }
  }
  return bytes;
}

}  // namespace tangram::mover
