// RankStore::KvPull: fetches the KV of a flip as a mover job.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "agent/base/either_stop.h"
#include "agent/base/limits.h"
#include "agent/mover/kv_source.h"
#include "agent/mover/mover.h"
#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

// Moves that are fetched together, and again together after an error.
constexpr size_t kTogether = 256;
constexpr uint64_t kBytesTogether = 2 << 20;

// KV of a rank of this process.
class SiblingKv final : public mover::Source {
 public:
  SiblingKv(std::string member, device::Memory region, const mover::KvOffsets* offsets)
      : member_(std::move(member)), region_(region), offsets_(offsets) {}
  std::string name() const override { return "KV of " + member_; }
  Status Bring(std::span<const mover::Range> job, std::span<const size_t> wanted,
               const Arrived& arrived, const std::stop_token&) override {
    std::vector<device::CopyOp> copies;
    for (const size_t i : wanted) {
      auto offset = (*offsets_)[i].begin();
      for (const device::Memory& to : job[i].units) {
        const uint64_t from = *offset++;
        if (from > region_.bytes || to.bytes > region_.bytes - from) {
          return {Code::kInvalid,
                  fmt::format("{} bytes at offset {} exceed the {} bytes of KV of {}", to.bytes,
                              from, region_.bytes, member_)};
        }
        copies.push_back({to, region_.Part(from, to.bytes)});
      }
    }
    TANGRAM_RETURN_IF_ERROR(job[wanted[0]].units[0].device->Copy(copies).Wait());
    for (const size_t i : wanted) arrived(i, {});
    return OkStatus();
  }

 private:
  const std::string member_;
  const device::Memory region_;
  const mover::KvOffsets* const offsets_;
};

}  // namespace

mover::KvLink& RankStore::LinkTo(const v1::Header& header, const v1::PeerAddress& peer) {
  std::unique_ptr<mover::KvLink>& link = links_[peer.member()];
  if (link == nullptr || link->attempt() != header.attempt()) {
    link = std::make_unique<mover::KvLink>(options_.opener, options_.transports, header, peer);
  }
  return *link;
}

// Never under mu_: a thread with kv_mu_ may wait for another rank's mu_ (its OpenPull), while that
// rank closes its own connections.
void RankStore::CloseLinks() {
  options_.transports->EndAttempt();
  {
    const std::scoped_lock lock(kv_stop_mu_);
    std::exchange(kv_stop_, std::stop_source()).request_stop();
  }
  const std::scoped_lock lock(kv_mu_);
  links_.clear();
}

std::stop_token RankStore::KvEnds() {
  const std::scoped_lock lock(kv_stop_mu_);
  return kv_stop_.get_token();
}

Result<uint64_t> RankStore::KvPull(const v1::KvPull& pull,
                                   const std::vector<v1::PeerAddress>& peers,
                                   StageProgress* progress, std::stop_token stop) {
  const EitherStop either(std::move(stop), KvEnds());
  const std::scoped_lock lock(kv_mu_);
  mover::KvOffsets offsets;
  std::vector<std::unique_ptr<mover::Source>> all;
  std::map<const mover::Source*, const mover::KvLink*> links;  // of sources in other processes
  std::map<uint32_t, uint32_t> by_rank;
  for (const v1::PeerAddress& peer : peers) {
    by_rank[peer.rank()] = static_cast<uint32_t>(all.size());
    if (RankStore* sibling = options_.sibling(peer.member())) {
      all.push_back(
          std::make_unique<SiblingKv>(peer.member(), sibling->memories_.kv.memory, &offsets));
    } else {
      mover::KvLink* const link = &LinkTo(pull.header(), peer);
      all.push_back(std::make_unique<mover::KvSource>(link, &offsets));
      links[all.back().get()] = link;
    }
  }
  std::vector<mover::Range> job;
  const device::Memory& mine = memories_.kv.memory;
  uint64_t bytes = 0;
  struct Group {
    size_t range = 0;
    uint64_t bytes = 0;
  };
  std::vector<Group> groups(all.size());  // by source: the group that is being filled
  for (int i = 0; i < pull.source_rank_size(); ++i) {
    const auto source = by_rank.find(pull.source_rank(i));
    const uint64_t to = pull.target_offset(i);
    const uint32_t length = pull.length(i);
    if (source == by_rank.end() || to > mine.bytes || length > mine.bytes - to) {
      return Status(
          Code::kInvalid,
          fmt::format(
              "KV move {}: invalid source rank {} or target range of {} bytes at offset {} of {}",
              i, pull.source_rank(i), length, to, mine.bytes));
    }
    Group& group = groups[source->second];
    if (group.bytes == 0 || group.bytes + length > kBytesTogether ||
        job[group.range].units.size() == kTogether) {
      group = {job.size(), 0};
      job.push_back({{}, {source->second}});
      offsets.emplace_back();
    }
    job[group.range].units.push_back(mine.Part(to, length));
    offsets[group.range].push_back(pull.source_offset(i));
    group.bytes += length;
    bytes += length;
  }
  std::vector<mover::Source*> sources;
  for (const auto& source : all) sources.push_back(source.get());
  const auto failed = [&](const mover::Source& source, const Status& status) {
    if (status.code() == Code::kCorrupt) ++progress->corrupt;
    spdlog::warn("KV source failed attempt={} source=\"{}\" error=\"{}\"", pull.header().attempt(),
                 source.name(), status.message());
  };
  // A flip waits for it, also for a pull ahead that is open when the flip comes.
  const mover::Limits limits{.workers = pull.ahead() ? 1U : 4U,
                             .failures = limits::kKvFailures,
                             .after_failure = limits::kKvRetry,
                             .yields = false};
  const auto arrived = [&](const mover::Source& source, size_t i, const auto&) {
    const auto link = links.find(&source);
    progress->kv_by_way.Add(link == links.end() ? kWithinProcess : link->second->transport(),
                            job[i].bytes());
  };
  TANGRAM_RETURN_IF_ERROR(mover::Bring(job, sources, limits, arrived, failed, either.token()));
  return bytes;
}

}  // namespace tangram::store
