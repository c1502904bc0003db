#include "agent/mover/kv_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/mover/data_server.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

const fault::Point kBeforeKv("kv.before_pull", fault::kErrors | fault::kCorruption);

}  // namespace

Status KvLink::Warm(const std::stop_token& stop) {
  if (stream_ != nullptr) return OkStatus();
  v1::OpenPullRequest request;
  *request.mutable_header() = header_;
  request.set_rank(peer_.rank());
  request.set_member(peer_.member());
  request.set_kv(true);
  const auto opened = opener_(peer_.agent(), request);
  if (!opened.ok()) return opened.status();
  auto stream = net::Connect(peer_.data(), credentials_, stop);
  if (!stream.ok()) return stream.status();
  TANGRAM_RETURN_IF_ERROR(net::WriteAll(**stream, std::as_bytes(std::span(opened->token())), stop));
  stream_ = std::move(stream).value();
  return OkStatus();
}

Status KvLink::Ask(std::span<const Range> ranges, const std::stop_token& stop) {
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
  if (stream_ != nullptr && stream_->Disturbed()) stream_.reset();
  TANGRAM_RETURN_IF_ERROR(Warm(stop));
  if (net::WriteAll(*stream_, request, stop).ok()) return OkStatus();
  stream_.reset();
  TANGRAM_RETURN_IF_ERROR(Warm(stop));
  return net::WriteAll(*stream_, request, stop);
}

Status KvLink::Receive(std::span<const Range> ranges, bool spoil, const std::stop_token& stop) {
  KvDigest digest;
  for (const Range& range : ranges) {
    TANGRAM_RETURN_IF_ERROR(device::Fill(range.to, [&](std::span<std::byte> bytes) -> Status {
      TANGRAM_RETURN_IF_ERROR(net::ReadAll(*stream_, bytes, stop));
      if (!bytes.empty() && std::exchange(spoil, false)) bytes[0] ^= std::byte{1};
      return OkStatus();
    }));
    uint64_t hash = 0;
    TANGRAM_RETURN_IF_ERROR(device::HashNow(range.to, &hash));
    digest.Add(hash);
  }
  uint64_t sent = 0;
  TANGRAM_RETURN_IF_ERROR(
      net::ReadAll(*stream_, std::as_writable_bytes(std::span(&sent, 1)), stop));
  if (sent == digest.Value()) return OkStatus();
  return {Code::kCorrupt, fmt::format("{} ranges differ from what was sent", ranges.size())};
}

Status KvLink::Read(std::span<const Range> ranges, const std::stop_token& stop) {
  const fault::Action fault = fault::Hit("kv.before_pull");
  if (fault == fault::Action::kError) return {Code::kUnavailable, "fault point kv.before_pull"};
  Status status = Ask(ranges, stop);
  if (status.ok()) status = Receive(ranges, fault == fault::Action::kCorrupt, stop);
  if (!status.ok()) stream_.reset();  // what else is on the way belongs to nothing
  return status;
}

Status KvSource::Bring(std::span<const mover::Range> job, std::span<const size_t> wanted,
                       const Arrived& arrived, const std::stop_token& stop) {
  // Rounds, so that no request exceeds what a server takes.
  std::vector<KvLink::Range> ranges;
  for (size_t sent = 0, i = 0; sent < wanted.size(); sent = i) {
    ranges.clear();
    for (; i < wanted.size(); ++i) {
      const device::Memory& to = job[wanted[i]].units[0];
      const uint64_t from = (*offsets_)[wanted[i]];
      const uint64_t parts = (to.bytes + kMostRangeBytes - 1) / kMostRangeBytes;
      if (ranges.size() + parts > kMostRanges) break;
      for (uint64_t at = 0; at < to.bytes; at += kMostRangeBytes) {
        ranges.push_back(
            {from + at, to.Part(at, std::min<uint64_t>(to.bytes - at, kMostRangeBytes))});
      }
    }
    TANGRAM_RETURN_IF_ERROR(link_->Read(ranges, stop));
    for (; sent < i; ++sent) arrived(wanted[sent], {});
  }
  return OkStatus();
}

}  // namespace tangram::mover
