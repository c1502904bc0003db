#include "e2e/engine/transition/carry.h"

#include <algorithm>

#include "agent/kv/cover.h"

namespace tangram::engine {

Result<Carrying> PlanCarry(const kv::Shape& shape, const Side& from, const Side& to,
                           std::vector<RankManifest>* manifests) {
  Carrying out;
  kv::Input& input = out.input;
  input.shape = shape;
  input.old_groups = from.groups;
  input.new_groups = to.groups;
  for (const std::string& member : from.members) {
    const auto it = std::find(to.members.begin(), to.members.end(), member);
    input.new_of_old.push_back(
        it == to.members.end() ? -1 : static_cast<int32_t>(it - to.members.begin()));
  }
  input.new_ranks = static_cast<uint32_t>(to.members.size());
  for (uint32_t r = 0; r < manifests->size(); ++r) {
    const auto add = [&](const Sequence& sequence, uint32_t reserved) {
      kv::Request& request = input.requests.emplace_back();
      request.id = sequence.id();
      request.home = r;
      request.length = sequence.computed;
      request.reserved = reserved;
      request.blocks = sequence.blocks;
    };
    RankManifest& manifest = (*manifests)[r];
    for (const Sequence& sequence : manifest.running) add(sequence, sequence.reserved_tokens());
    // Who waits has nothing and reserves nothing yet, but needs a home.
    for (const Sequence& sequence : manifest.waiting) add(sequence, 0);
    input.ranks.push_back(std::move(manifest.pages));
  }
  Result<kv::Plan> plan = kv::MakePlan(input);
  if (!plan.ok()) return plan.status();
  out.plan = std::move(*plan);
  return out;
}

Result<kv::RankPlan> PartOf(const Carrying& carrying, uint32_t rank) {
  Result<kv::RankPlan> part = kv::MakePart(carrying.input, carrying.plan, rank);
  if (part.ok()) {
    TANGRAM_RETURN_IF_ERROR(kv::CheckPart(carrying.input, carrying.plan, rank, *part));
  }
  return part;
}

Result<uint64_t> PullPages(WorldView& world, KvMemory& kv, const std::vector<kv::Format>& sources,
                           const kv::Format& mine, uint32_t old_rank,
                           const std::vector<kv::PageCopy>& copies,
                           const std::function<void()>& between) {
  std::vector<tg_kv_move> pulls;
  std::vector<KvMemory::Move> here;
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
  const auto bring = [&](const kv::ByteMove& move) -> Status {
    if (move.source_rank == old_rank) {
      here.push_back({move.target, move.source, move.length});
      bytes += move.length;
      return OkStatus();
    }
    for (uint64_t at = 0; at < move.length; at += kPullAtOnce) {
      const uint64_t part = std::min(move.length - at, kPullAtOnce);
      pulls.push_back(
          {move.source_rank, move.source + at, move.target + at, static_cast<uint32_t>(part)});
      asked += part;
      if (asked >= kPullAtOnce) TANGRAM_RETURN_IF_ERROR(pull());
    }
    return OkStatus();
  };
  TANGRAM_RETURN_IF_ERROR(
      kv::TellMoves([&](uint32_t rank) { return rank < sources.size() ? &sources[rank] : nullptr; },
                    mine, copies, bring));
  TANGRAM_RETURN_IF_ERROR(pull());
  TANGRAM_RETURN_IF_ERROR(kv.Copy(here));
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
