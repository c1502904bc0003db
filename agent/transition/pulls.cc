#include "agent/transition/pulls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/base/either_stop.h"

namespace tangram {
namespace {

// A layer's attention by member ids, which survive a renumbering: the query heads of each member.
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

// The same for layouts with the same members in the same order.
bool SameAttention(const v1::LayerLayout& a, const v1::LayerLayout& b) {
  const auto same = [](const v1::AttentionGroup& x, const v1::AttentionGroup& y) {
    return std::ranges::equal(x.ranks(), y.ranks()) &&
           std::ranges::equal(x.query_head_bounds(), y.query_head_bounds());
  };
  return std::equal(a.attention().begin(), a.attention().end(), b.attention().begin(),
                    b.attention().end(), same);
}

// An agent may read only the pieces that the target assigns to its own ranks. Engines assign KV at
// the flip, so in attempts that move KV it may read all KV.
Status CheckPull(const v1::OpenPullRequest& request, const Job& job, const std::string& pod) {
  const v1::Layout& target = *job.target;
  std::vector<bool> its;  // ranks of the target that belong to `pod`
  for (const v1::Member& member : target.members()) its.push_back(member.pod() == pod);
  if (std::find(its.begin(), its.end(), true) == its.end()) {
    return {Code::kUnauthenticated,
            fmt::format("pod '{}' has no rank in the target of attempt {}", pod, job.id)};
  }
  if (request.kv() && !job.carries_kv) {
    return {Code::kUnauthenticated,
            fmt::format("attempt {} moves no KV, but pod '{}' requested KV", job.id, pod)};
  }
  const v1::Fetches& wanted = request.pieces();
  // RankMemory rejects columns of different length.
  const int n = std::min({wanted.layer_size(), wanted.expert_size(), wanted.granule_start_size(),
                          wanted.granule_count_size()});
  for (int i = 0; i < n; ++i) {
    const layout::Run run{wanted.granule_start(i), wanted.granule_count(i)};
    if (job.owners->Give(wanted.layer(i), wanted.expert(i), run, its)) continue;
    return {Code::kUnauthenticated, fmt::format("layer {}, expert {}, granules {}..{} are assigned "
                                                "to no rank of pod '{}' in attempt {}",
                                                wanted.layer(i), wanted.expert(i), run.start,
                                                uint64_t{run.start} + run.count, pod, job.id)};
  }
  return OkStatus();
}

}  // namespace

// Unless attention changes, requests stay at their homes, and their KV stays in place.
bool CarriesKv(const Job& job, const v1::Layout* base) {
  if (base == nullptr || job.by_agents()) return false;
  const v1::Layout& target = *job.target;
  if (base->layers_size() != target.layers_size()) return true;
  const bool renumbered =
      !std::ranges::equal(base->members(), target.members(), {}, &v1::Member::id, &v1::Member::id);
  for (int l = 0; l < target.layers_size(); ++l) {
    if (!renumbered && SameAttention(base->layers(l), target.layers(l))) continue;
    if (AttentionOf(*base, base->layers(l)) != AttentionOf(target, target.layers(l))) return true;
  }
  return false;
}

Result<v1::OpenPullResponse> OpenPull(Core* core, const v1::OpenPullRequest& request,
                                      const std::string& pod) {
  RankMemory* memory = nullptr;
  JobPtr job;
  {
    const std::scoped_lock lock(core->mu);
    TANGRAM_RETURN_IF_ERROR(core->machine.CheckPull(HeaderOf(request.header())));
    for (const Core::Rank& rank : core->ranks) {
      if (rank.member.id() == request.member()) memory = rank.memory;
    }
    job = core->JobOf(request.header().attempt());
  }
  if (memory == nullptr) {
    return Status{Code::kBadPlan,
                  fmt::format("member {} does not belong to this agent", request.member())};
  }
  TANGRAM_RETURN_IF_ERROR(CheckPull(request, *job, pod));
  return memory->OpenPull(request, pod);
}

Result<std::optional<uint64_t>> KvPull(Core* core, uint32_t device, const v1::KvPull& pull,
                                       std::stop_token stop) {
  JobPtr job;
  std::shared_ptr<const v1::Layout> base;
  bool awaited = false;  // the flip waits for it
  {
    const std::scoped_lock lock(core->mu);
    TANGRAM_RETURN_IF_ERROR(
        core->machine.CheckKvPull(HeaderOf(pull.header()), device, pull.ahead()));
    job = core->JobOf(pull.header().attempt());
    if (const Core::Rank* rank = core->InForce()) base = rank->layout;
    awaited = core->machine.attempt()->phase == attempt::Phase::kPermitted;
  }
  const int n = pull.source_rank_size();
  if (pull.source_offset_size() != n || pull.target_offset_size() != n || pull.length_size() != n) {
    return Status{Code::kInvalid, "KV pull has columns of different lengths"};
  }
  if (!base) return Status{Code::kWrongPhase, "KV pull without an active layout"};
  // Sources are ranks of the layout before the flip; `peers` has the ranks of the target.
  std::vector<v1::PeerAddress> peers;
  for (v1::PeerAddress peer : job->peers()) {
    const int32_t before = layout::RankOf(*base, peer.member());
    if (before < 0) continue;
    peer.set_rank(static_cast<uint32_t>(before));
    peers.push_back(std::move(peer));
  }
  const auto now = [core] { return core->options.now().time_since_epoch(); };
  const Core::Rank& rank = core->ranks[device];
  StepPace* const pace = pull.ahead() && !awaited ? core->PaceOf(*job, device) : nullptr;
  if (pace != nullptr && !pace->MayPull(now(), *rank.gate.page())) return std::optional<uint64_t>();
  Job::Part& part = job->parts.at(device);
  const auto begun = now();
  const EitherStop either(std::move(stop), job->stop.get_token());
  const auto bytes = rank.memory->KvPull(pull, peers, &part.progress, either.token());
  if (pace != nullptr) pace->Pulled(now(), now() - begun);
  if (!bytes.ok()) return bytes.status();
  part.kv_bytes += *bytes;
  if (pull.ahead()) part.kv_ahead_bytes += *bytes;
  return std::optional(*bytes);
}

}  // namespace tangram
