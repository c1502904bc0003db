// What other agents may read of this one's ranks, and what an engine has its agent read of theirs.
#include <fmt/format.h>

#include <algorithm>

#include "agent/transition/executor.h"

namespace tangram {
namespace {

// The attention of a layer in terms that outlive a renumbering: who computes which query heads.
std::vector<std::pair<std::vector<std::string>, std::vector<uint32_t>>> AttentionOf(
    const v1::Layout& layout, const v1::LayerLayout& layer) {
  std::vector<std::pair<std::vector<std::string>, std::vector<uint32_t>>> out;
  for (const v1::AttentionGroup& group : layer.attention()) {
    auto& [members, bounds] = out.emplace_back();
    for (const uint32_t rank : group.ranks()) {
      members.push_back(layout.members(static_cast<int>(rank)).id());
    }
    bounds.assign(group.query_head_bounds().begin(), group.query_head_bounds().end());
  }
  return out;
}

}  // namespace

// Requests stay at their homes, and their KV where it is, unless attention changes.
bool Executor::CarriesKv(const Attempt& attempt, const v1::Layout* base) {
  if (base == nullptr || attempt.by_agents()) return false;
  const v1::Layout& target = *attempt.target;
  if (base->layers_size() != target.layers_size()) return true;
  for (int l = 0; l < target.layers_size(); ++l) {
    if (AttentionOf(*base, base->layers(l)) != AttentionOf(target, target.layers(l))) return true;
  }
  return false;
}

// An agent may read what the target gives to its own ranks, and nothing else. Which KV goes where
// is decided at the flip, by engines: of that it may read all, in the attempts that carry any.
Status Executor::CheckPull(const v1::OpenPullRequest& request, const Attempt& attempt,
                           const std::string& pod) const {
  const v1::Layout& target = *attempt.target;
  std::vector<bool> its;  // by rank of the target
  for (const v1::Member& member : target.members()) its.push_back(member.pod() == pod);
  if (std::find(its.begin(), its.end(), true) == its.end()) {
    return {Code::kUnauthenticated,
            fmt::format("pod '{}' has no rank in the target of attempt {}", pod, attempt.id)};
  }
  if (request.kv() && !attempt.carries_kv) {
    return {Code::kUnauthenticated,
            fmt::format("attempt {} carries no KV, pod '{}' asks for it", attempt.id, pod)};
  }
  const v1::Fetches& wanted = request.pieces();
  // Columns of different length are the memory's to refuse.
  const int n = std::min({wanted.layer_size(), wanted.expert_size(), wanted.granule_start_size(),
                          wanted.granule_count_size()});
  for (int i = 0; i < n; ++i) {
    const layout::Run run{wanted.granule_start(i), wanted.granule_count(i)};
    if (attempt.owners->Give(wanted.layer(i), wanted.expert(i), run, its)) continue;
    return {Code::kUnauthenticated,
            fmt::format("layer {}, expert {}, granules {}..{} go to no rank of pod '{}' in "
                        "attempt {}",
                        wanted.layer(i), wanted.expert(i), run.start,
                        uint64_t{run.start} + run.count, pod, attempt.id)};
  }
  return OkStatus();
}

Result<v1::OpenPullResponse> Executor::OpenPull(const v1::OpenPullRequest& request,
                                                const std::string& pod) {
  RankMemory* memory = nullptr;
  AttemptPtr attempt;
  {
    const std::scoped_lock lock(mu_);
    if (request.header().world() != options_.world) {
      return Status{Code::kWrongWorld, fmt::format("this agent serves world '{}'", options_.world)};
    }
    // A pull belongs to an attempt that is under way here: after its end (or before its
    // beginning) nobody may read these pages.
    if (!attempt_ || attempt_->id != request.header().attempt()) {
      const bool later = request.header().attempt() > highest_;
      return Status{later ? Code::kNotHeld : Code::kStaleAttempt,
                    fmt::format("a pull of attempt {}; {}", request.header().attempt(),
                                attempt_ ? fmt::format("attempt {} is under way", attempt_->id)
                                         : fmt::format("none is under way, the highest seen is {}",
                                                       highest_))};
    }
    for (const Rank& rank : ranks_) {
      if (rank.member.id() == request.member()) memory = rank.memory;
    }
    if (memory == nullptr) {
      return Status{Code::kBadPlan,
                    fmt::format("member {} is not of this agent", request.member())};
    }
    attempt = attempt_;
  }
  TANGRAM_RETURN_IF_ERROR(CheckPull(request, *attempt, pod));
  return memory->OpenPull(request, pod);
}

Result<uint64_t> Executor::KvPull(uint32_t device, const v1::KvPull& pull) {
  AttemptPtr attempt;
  {
    const std::scoped_lock lock(mu_);
    TANGRAM_RETURN_IF_ERROR(CheckCurrent(pull.header(), "a KV pull"));
    attempt = attempt_;
    if (!attempt->parts.contains(device) || attempt->phase != v1::PHASE_PERMITTED) {
      return Status{Code::kWrongPhase,
                    fmt::format("a KV pull in {}", v1::Phase_Name(attempt->phase))};
    }
  }
  const int n = pull.source_rank_size();
  if (pull.source_offset_size() != n || pull.target_offset_size() != n || pull.length_size() != n) {
    return Status{Code::kInvalid, "a KV pull whose columns differ in length"};
  }
  // Sources are ranks of the layout before the flip; the peers are named by the target's.
  std::vector<v1::PeerAddress> peers;
  {
    const std::scoped_lock lock(mu_);
    const auto base = LayoutLocked();
    if (!base) return Status{Code::kWrongPhase, "a KV pull without a layout"};
    for (v1::PeerAddress peer : attempt->peers()) {
      const int32_t before = layout::RankOf(*base, peer.member());
      if (before < 0) continue;
      peer.set_rank(static_cast<uint32_t>(before));
      peers.push_back(std::move(peer));
    }
  }
  Part& part = attempt->parts.at(device);
  auto bytes = ranks_[device].memory->KvPull(pull, peers, &part.progress);
  if (bytes.ok()) part.kv_bytes += *bytes;
  return bytes;
}

}  // namespace tangram
