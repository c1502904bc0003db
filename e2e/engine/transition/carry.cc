#include "e2e/engine/transition/carry.h"

#include <algorithm>
#include <set>
#include <string>

#include "agent/engine/world/groups.h"

namespace tangram::engine {
namespace {

using BlockNames = std::set<std::pair<uint32_t, uint32_t>>;  // home, block

// The idle chains of all homes, round robin, the most recently used first.
std::vector<std::pair<uint32_t, uint32_t>> InTurn(const std::vector<RankManifest>& manifests) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  size_t most = 0;
  for (const RankManifest& manifest : manifests) most = std::max(most, manifest.idle.size());
  for (size_t i = 1; i <= most; ++i) {
    for (uint32_t home = 0; home < manifests.size(); ++home) {
      const size_t count = manifests[home].idle.size();
      if (i <= count) out.emplace_back(home, static_cast<uint32_t>(count - i));
    }
  }
  return out;
}

// Promises of a rank's running requests, then of its chains.
int32_t PromiseOf(const RankManifest& manifest, size_t i) {
  return i < manifest.promised.size() ? manifest.promised[i] : -1;
}

// The rank's pages, with those of the blocks counted as free.
kv::RankState Without(const BlockNames& blocks, const HeldMap& held, uint32_t rank,
                      const kv::RankState& state) {
  kv::RankState out;
  out.total_pages = state.total_pages;
  uint64_t free = state.free_pages;
  for (const auto& [home, block] : blocks) free += held.PagesPerBlock(home, rank);
  for (const kv::Strip& strip : state.strips) {
    if (!blocks.contains({strip.home, strip.block})) out.strips.push_back(strip);
  }
  out.free_pages = static_cast<uint32_t>(std::min<uint64_t>(free, UINT32_MAX));
  return out;
}

// The plan for the requests of `only` and the first `count` of `idle`.
Result<Carrying> PlanWith(const kv::Input& only, const HeldMap& held,
                          const std::vector<RankManifest>& manifests,
                          const std::vector<std::pair<uint32_t, uint32_t>>& idle, size_t count) {
  Carrying out;
  out.input = only;
  out.idle.assign(idle.begin(), idle.begin() + static_cast<ptrdiff_t>(count));
  BlockNames used, unused;
  for (const auto& [home, chain] : out.idle) {
    const std::vector<uint32_t>& blocks = manifests[home].idle[chain].blocks;
    kv::Request& request = out.input.requests.emplace_back();
    // No request has an id of this length.
    request.id = std::string(kMaxIdBytes, '/') + std::to_string(home) + "/" + std::to_string(chain);
    request.home = home;
    request.length = request.reserved =
        static_cast<uint32_t>(blocks.size()) * only.shape.block_tokens;
    request.blocks = blocks;
    request.idle = true;
    request.promised = PromiseOf(manifests[home], manifests[home].running.size() + chain);
  }
  for (const kv::Request& request : out.input.requests) {
    for (const uint32_t block : request.blocks) used.emplace(request.home, block);
  }
  for (const auto& [home, chain] : idle) {
    for (const uint32_t block : manifests[home].idle[chain].blocks) {
      if (!used.contains({home, block})) unused.emplace(home, block);
    }
  }
  for (uint32_t r = 0; !unused.empty() && r < out.input.ranks.size(); ++r) {
    out.input.ranks[r] = Without(unused, held, r, out.input.ranks[r]);
  }
  out.evicted.assign(unused.begin(), unused.end());
  Result<kv::Plan> plan = kv::MakePlan(out.input);
  if (!plan.ok()) return plan.status();
  out.plan = std::move(*plan);
  return out;
}

// Whether the requests of `without` get the same homes.
bool SameHomes(const kv::Plan& with, const kv::Plan& without) {
  return std::equal(without.requests.begin(), without.requests.end(), with.requests.begin(),
                    [](const auto& a, const auto& b) { return a.home == b.home; });
}

}  // namespace

std::vector<bool> ListedLayers(const Side& from, const Side& to, bool whole) {
  if (whole || from.members != to.members) return {};
  for (uint32_t home = 0; home < from.members.size(); ++home) {
    if (Accepts(from.groups, home) && !Accepts(to.groups, home)) return {};
  }
  return kv::LayersThatChange(from.groups, to.groups);
}

Result<Carrying> PlanCarry(const kv::Shape& shape, const Side& from, const Side& to, bool whole,
                           std::vector<RankManifest>* manifests) {
  kv::Input input;
  input.only_changed = !ListedLayers(from, to, whole).empty();
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
    for (size_t i = 0; i < manifest.running.size(); ++i) {
      add(manifest.running[i], manifest.running[i].reserved_tokens());
      input.requests.back().promised = PromiseOf(manifest, i);
    }
    // A waiting request has no KV and reserves nothing yet, but needs a home.
    for (const Sequence& sequence : manifest.waiting) add(sequence, 0);
    input.ranks.push_back(std::move(manifest.pages));
  }
  const std::vector<std::pair<uint32_t, uint32_t>> idle = InTurn(*manifests);
  const HeldMap held(from.groups, shape, static_cast<uint32_t>(from.members.size()));
  Result<Carrying> out = PlanWith(input, held, *manifests, idle, 0);
  if (!out.ok() || idle.empty()) return out;
  const kv::Plan without = out->plan;
  // As many as fit: usually all of them.
  for (size_t fits = 0, most = idle.size(), count = most; fits < most;
       count = fits + (most - fits + 1) / 2) {
    Result<Carrying> more = PlanWith(input, held, *manifests, idle, count);
    if (!more.ok() && more.status().code() != Code::kNoMemory) return more;
    if (more.ok() && SameHomes(more->plan, without)) {
      out = std::move(more);
      fits = count;
    } else {
      most = count - 1;
    }
  }
  return out;
}

Result<uint64_t> PullPages(Copies& pulls, KvMemory& kv, const std::vector<kv::Format>& sources,
                           const kv::Format& mine, uint32_t old_rank,
                           const std::vector<kv::PageCopy>& copies, Between& between) {
  std::vector<tg_kv_move> there;
  std::vector<KvMemory::Move> here;
  uint64_t bytes = 0, asked = 0;
  const auto pull = [&] {
    const Result<uint64_t> pulled = pulls.Pull(there, between);
    if (pulled.ok()) bytes += *pulled;
    asked = 0;
    there.clear();
    return pulled.status();
  };
  const auto bring = [&](const kv::ByteMove& move) -> Status {
    if (move.source_rank == old_rank) {
      here.push_back({move.target, move.source, move.length});
      bytes += move.length;
      return OkStatus();
    }
    for (uint64_t at = 0; at < move.length; at += Copies::kPullAtOnce) {
      const uint64_t part = std::min(move.length - at, Copies::kPullAtOnce);
      there.push_back(
          {move.source_rank, move.source + at, move.target + at, static_cast<uint32_t>(part)});
      asked += part;
      if (asked >= Copies::kPullAtOnce) TANGRAM_RETURN_IF_ERROR(pull());
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

Adopted AdoptOf(const Carrying& carrying, std::vector<RankManifest> manifests, uint32_t rank) {
  Adopted out;
  size_t next = 0;
  const auto take = [&](Sequence& sequence, std::vector<Sequence>* to) {
    const kv::Placement& placement = carrying.plan.requests[next++];
    if (placement.home != rank) return;
    sequence.blocks = placement.blocks;
    to->push_back(std::move(sequence));
  };
  for (RankManifest& manifest : manifests) {
    for (Sequence& sequence : manifest.running) take(sequence, &out.running);
    for (Sequence& sequence : manifest.waiting) take(sequence, &out.waiting);
  }
  for (const auto& [home, chain] : carrying.idle) {
    const kv::Placement& placement = carrying.plan.requests[next++];
    if (placement.home != rank) continue;
    Chain& came = manifests[home].idle[chain];
    out.idle.push_back({placement.blocks, std::move(came.tokens), std::move(came.salt)});
  }
  std::reverse(out.idle.begin(), out.idle.end());
  return out;
}

}  // namespace tangram::engine
