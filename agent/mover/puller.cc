#include "agent/mover/puller.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "agent/base/fault.h"
#include "agent/mover/data_server.h"

namespace tangram::mover {
namespace {

const fault::Point kAfterFetch("stage.after_fetch");
const fault::Point kBeforeKv("kv.before_pull");

// The other side has closed it. A first write after that still succeeds, and what it asked
// for is lost, so this is asked before.
bool Closed(int fd) {
  char byte = 0;
  const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

uint64_t HashOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Status PullPieces(const std::string& data, const std::string& token,
                  std::span<const Target> targets, std::stop_token stop,
                  const std::function<void(uint64_t)>& done) {
  auto fd = Connect(data);
  if (!fd.ok()) return fd.status();
  TANGRAM_RETURN_IF_ERROR(
      WriteAll(fd->get(), {{const_cast<char*>(token.data()), token.size()}}, stop));
  for (size_t i = 0; i < targets.size(); ++i) {
    TANGRAM_RETURN_IF_ERROR(ReadAll(fd->get(), targets[i].bytes, stop));
    switch (fault::Hit("stage.after_fetch")) {
      case fault::Action::kCorrupt:
        targets[i].bytes[0] ^= std::byte{1};
        break;
      case fault::Action::kError:
        return {Code::kUnavailable, "fault point stage.after_fetch"};
      case fault::Action::kNone:
        break;
    }
    if (HashOf(targets[i].bytes) != targets[i].hash) {
      return {Code::kCorrupt,
              fmt::format("unit {} of {} from {} differs from its hash", i, targets.size(), data)};
    }
    done(targets[i].bytes.size());
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
  auto fd = Connect(peer.data());
  if (!fd.ok()) return fd.status();
  TANGRAM_RETURN_IF_ERROR(WriteAll(
      fd->get(), {{const_cast<char*>(opened->token().data()), opened->token().size()}}, {}));
  connections_.emplace(peer.member(), std::move(fd).value());
  return OkStatus();
}

Status KvReaders::Ask(const v1::Header& header, const v1::PeerAddress& peer,
                      std::span<const Range> ranges) {
  std::vector<std::byte> request(4 + ranges.size() * 12);
  const auto count = static_cast<uint32_t>(ranges.size());
  std::memcpy(request.data(), &count, sizeof count);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto length = static_cast<uint32_t>(ranges[i].to.size());
    std::memcpy(request.data() + 4 + i * 12, &ranges[i].source_offset, 8);
    std::memcpy(request.data() + 4 + i * 12 + 8, &length, 4);
  }
  // The source closes what was silent for long; a fresh connection is as good.
  if (const auto it = connections_.find(peer.member());
      it != connections_.end() && Closed(it->second.get())) {
    connections_.erase(it);
  }
  TANGRAM_RETURN_IF_ERROR(Warm(header, peer));
  Status sent =
      WriteAll(connections_.at(peer.member()).get(), {{request.data(), request.size()}}, {});
  if (sent.ok()) return sent;
  connections_.erase(peer.member());
  TANGRAM_RETURN_IF_ERROR(Warm(header, peer));
  return WriteAll(connections_.at(peer.member()).get(), {{request.data(), request.size()}}, {});
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
        if (Status status = ReadAll(connections_.at(peer.member()).get(), range.to, {});
            !status.ok()) {
          connections_.erase(peer.member());
          return Status(status.code(),
                        fmt::format("KV of {}: {}", peer.member(), status.message()));
        }
        bytes += range.to.size();
      }
      more |= static_cast<size_t>(ranges.size() > from + kMostRanges);
    }
  }
  return bytes;
}

}  // namespace tangram::mover
