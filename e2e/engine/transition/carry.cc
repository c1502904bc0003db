#include "e2e/engine/transition/carry.h"

#include <algorithm>
#include <cstring>

#include "agent/kv/cover.h"

namespace tangram::engine {

Result<kv::Plan> PlanCarry(const kv::Shape& shape, const Side& from, const Side& to,
                           const std::vector<RankManifest>& manifests) {
  kv::Input input;
  input.shape = shape;
  input.old_groups = from.groups;
  input.new_groups = to.groups;
  for (const std::string& member : from.members) {
    const auto it = std::find(to.members.begin(), to.members.end(), member);
    input.new_of_old.push_back(
        it == to.members.end() ? -1 : static_cast<int32_t>(it - to.members.begin()));
  }
  input.new_ranks = static_cast<uint32_t>(to.members.size());
  for (uint32_t r = 0; r < manifests.size(); ++r) {
    const auto add = [&](const Sequence& sequence, uint32_t reserved) {
      kv::Request& request = input.requests.emplace_back();
      request.id = sequence.id();
      request.home = r;
      request.length = sequence.computed;
      request.reserved = reserved;
      request.blocks = sequence.blocks;
    };
    for (const Sequence& sequence : manifests[r].running) {
      add(sequence, sequence.reserved_tokens());
    }
    // Who waits has nothing and reserves nothing yet, but needs a home.
    for (const Sequence& sequence : manifests[r].waiting) add(sequence, 0);
    input.ranks.push_back(manifests[r].pages);
  }
  Result<kv::Plan> plan = kv::MakePlan(input);
  if (plan.ok()) TANGRAM_RETURN_IF_ERROR(kv::CoverCheck(input, *plan));
  return plan;
}

Result<uint64_t> PullPages(WorldView& world, const kv::Shape& shape, uint32_t old_rank,
                           const kv::RankPlan& plan, const std::vector<uint32_t>& targets,
                           const std::function<void()>& between) {
  const uint64_t page_bytes = uint64_t{shape.block_tokens} * shape.head_token_bytes;
  auto* region = static_cast<uint8_t*>(world.model().kv);
  std::vector<tg_kv_move> pulls;
  uint64_t bytes = 0, asked = 0;
  const auto pull = [&] {
    if (pulls.empty()) return OkStatus();
    Result<uint64_t> pulled = world.PullKv(pulls);
    if (!pulled.ok()) return pulled.status();
    bytes += *pulled;
    asked = 0;
    pulls.clear();
    between();
    return OkStatus();
  };
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const kv::Move& move = plan.moves[i];
    for (const kv::Range& range : kv::MoveRanges(shape, move.tokens)) {
      const uint64_t source = move.source_page * page_bytes + range.offset;
      const uint64_t target = targets[i] * page_bytes + range.offset;
      if (move.source_rank == old_rank) {
        std::memcpy(region + target, region + source, range.length);
        bytes += range.length;
      } else {
        pulls.push_back({move.source_rank, source, target, range.length});
        asked += range.length;
        if (asked >= kPullAtOnce) TANGRAM_RETURN_IF_ERROR(pull());
      }
    }
  }
  TANGRAM_RETURN_IF_ERROR(pull());
  return bytes;
}

Adopted AdoptOf(const kv::Plan& plan, std::vector<RankManifest> manifests, uint32_t rank) {
  Adopted out;
  size_t next = 0;
  const auto take = [&](Sequence& sequence, std::vector<Sequence>* to) {
    const kv::Placement& placement = plan.requests[next++];
    if (placement.home != rank) return;
    sequence.blocks = placement.blocks;
    to->push_back(std::move(sequence));
  };
  for (RankManifest& manifest : manifests) {
    for (Sequence& sequence : manifest.running) take(sequence, &out.running);
    for (Sequence& sequence : manifest.waiting) take(sequence, &out.waiting);
  }
  return out;
}

}  // namespace tangram::engine
