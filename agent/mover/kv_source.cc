#include "agent/mover/kv_source.h"

#include <algorithm>

#include "agent/base/fault.h"

namespace tangram::mover {
namespace {

const fault::Point kBeforeKv("kv.before_pull", fault::kErrors | fault::kCorruption);

}  // namespace

Result<std::unique_ptr<KvChannel>> KvLink::Open(Transport& transport, const std::stop_token& stop) {
  v1::OpenPullRequest request;
  *request.mutable_header() = header_;
  request.set_rank(peer_.rank());
  request.set_member(peer_.member());
  request.set_kv(true);
  request.set_by_descriptor(transport.capabilities().one_sided);
  const auto opened = opener_(peer_.agent(), request, stop);
  if (!opened.ok()) return opened.status();
  return transport.OpenKv(peer_, opened->token(), stop);
}

Status KvLink::Connect(const std::stop_token& stop) {
  while (channel_ == nullptr) {
    transport_ = &transports_->For(peer_);
    auto channel = Open(*transport_, stop);
    if (channel.ok()) {
      channel_ = std::move(channel).value();
    } else {
      transports_->Failed(*transport_, peer_);
      if (&transports_->For(peer_) == transport_) return channel.status();
    }
  }
  return OkStatus();
}

Status KvLink::Read(std::span<const KvRange> ranges, const std::stop_token& stop) {
  const fault::Action fault = fault::Hit("kv.before_pull");
  if (fault == fault::Action::kError) return {Code::kUnavailable, "fault point kv.before_pull"};
  // The source closes connections that rest too long. A first write after that still succeeds and
  // the request is lost, so check first.
  if (channel_ != nullptr && channel_->Gone()) channel_.reset();
  TANGRAM_RETURN_IF_ERROR(Connect(stop));
  Status status = channel_->Read(ranges, fault == fault::Action::kCorrupt, stop);
  if (status.ok()) return status;
  channel_.reset();
  if (status.code() != Code::kCorrupt) transports_->Failed(*transport_, peer_);
  return status;
}

Status KvSource::Bring(std::span<const mover::Range> job, std::span<const size_t> wanted,
                       const Arrived& arrived, const std::stop_token& stop) {
  // Several rounds, so that no request exceeds the server's limit.
  std::vector<KvRange> ranges;
  for (size_t sent = 0, i = 0; sent < wanted.size(); sent = i) {
    ranges.clear();
    for (; i < wanted.size(); ++i) {
      const size_t before = ranges.size();
      auto offset = (*offsets_)[wanted[i]].begin();
      for (const device::Memory& to : job[wanted[i]].units) {
        const uint64_t from = *offset++;
        for (uint64_t at = 0; at < to.bytes; at += kMostRangeBytes) {
          ranges.push_back(
              {from + at, to.Part(at, std::min<uint64_t>(to.bytes - at, kMostRangeBytes))});
        }
      }
      if (ranges.size() > kMostRanges && before > 0) {
        ranges.resize(before);  // goes to the next round
        break;
      }
    }
    TANGRAM_RETURN_IF_ERROR(link_->Read(ranges, stop));
    for (; sent < i; ++sent) arrived(wanted[sent], {});
  }
  return OkStatus();
}

}  // namespace tangram::mover
