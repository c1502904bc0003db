#include "agent/kv/plan.h"

#include <algorithm>
#include <map>

#include "agent/kv/placement.h"
#include "agent/kv/validate.h"

namespace tangram::kv {
namespace {

// Answers "which page of (home, block, layer, head) does the old rank have".
class Pages {
 public:
  explicit Pages(const Input& in) : in_(in), blocks_(in.ranks.size()) {
    for (size_t r = 0; r < in.ranks.size(); ++r) {
      for (const HeldBlock& b : in.ranks[r].blocks) blocks_[r][{b.home, b.block}] = &b;
    }
  }

  // nullptr if the rank does not have it.
  const uint32_t* Find(uint32_t rank, uint32_t home, uint32_t block, LayerHead head) {
    auto it = blocks_[rank].find({home, block});
    if (it == blocks_[rank].end()) return nullptr;
    auto [held, added] = held_.try_emplace({home, rank});
    if (added) held->second = HeldOf(in_.shape, in_.old_groups, home, rank);
    auto at = std::lower_bound(held->second.begin(), held->second.end(), head);
    if (at == held->second.end() || *at != head) return nullptr;
    return &it->second->pages[at - held->second.begin()];
  }

 private:
  const Input& in_;
  std::vector<std::map<std::pair<uint32_t, uint32_t>, const HeldBlock*>> blocks_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<LayerHead>> held_;
};

class Planner {
 public:
  Planner(const Input& in, const Placed& placed)
      : in_(in),
        placed_(placed),
        pages_(in),
        old_of_new_(in.new_ranks, -1),
        sent_(in.ranks.size()) {
    for (size_t o = 0; o < in.ranks.size(); ++o) {
      if (in.new_of_old[o] >= 0) old_of_new_[in.new_of_old[o]] = static_cast<int32_t>(o);
    }
    plan_.ranks.resize(in.new_ranks);
  }

  Plan Run() {
    for (uint32_t home = 0; home < in_.new_ranks; ++home) {
      if (placed_.blocks[home].empty()) continue;
      for (uint32_t r = 0; r < in_.new_ranks; ++r) {
        const auto needed = HeldOf(in_.shape, in_.new_groups, home, r);
        for (const PlacedBlock& block : placed_.blocks[home]) {
          for (LayerHead head : needed) Provide(home, r, block, head);
        }
      }
    }
    for (uint32_t r = 0; r < in_.new_ranks; ++r) Free(r);
    plan_.requests = placed_.requests;
    plan_.next_block = placed_.next_block;
    plan_.requests_moved = placed_.moved;
    return std::move(plan_);
  }

 private:
  void Provide(uint32_t home, uint32_t rank, const PlacedBlock& block, LayerHead head) {
    RankPlan& out = plan_.ranks[rank];
    const int32_t self = old_of_new_[rank];
    const uint32_t* own =
        self < 0 ? nullptr
                 : pages_.Find(static_cast<uint32_t>(self), block.old_home, block.old_block, head);
    if (own != nullptr) {
      auto owner = placed_.owners.find({rank, block.old_home, block.old_block});
      if (owner != placed_.owners.end() && owner->second == home) {
        out.kept.push_back({*own, head.layer, head.kv_head, home, block.new_block, block.tokens});
        return;
      }
    }
    uint32_t source = static_cast<uint32_t>(self);
    const uint32_t* page = own;
    const uint64_t bytes = uint64_t{block.tokens} * in_.shape.head_token_bytes;
    if (own == nullptr) {
      // Every rank of the old group that has a replica of the head may send; the one that
      // has sent least so far does, the lowest of equals.
      size_t unused;
      const Group* group = FindGroup(in_.old_groups[head.layer], block.old_home, &unused);
      for (uint32_t candidate : group->ranks) {
        const uint32_t* at = pages_.Find(candidate, block.old_home, block.old_block, head);
        if (at == nullptr) continue;
        if (page == nullptr || sent_[candidate] < sent_[source] ||
            (sent_[candidate] == sent_[source] && candidate < source)) {
          page = at;
          source = candidate;
        }
      }
      sent_[source] += bytes;
    } else {
      plan_.local_bytes += bytes;
    }
    plan_.moved_bytes += bytes;
    out.moves.push_back(
        {source, *page, head.layer, head.kv_head, home, block.new_block, block.tokens});
  }

  void Free(uint32_t rank) {
    const int32_t self = old_of_new_[rank];
    if (self < 0) return;
    RankPlan& out = plan_.ranks[rank];
    std::vector<uint32_t> kept, held;
    for (const Keep& k : out.kept) kept.push_back(k.page);
    for (const HeldBlock& b : in_.ranks[self].blocks) {
      held.insert(held.end(), b.pages.begin(), b.pages.end());
    }
    std::sort(kept.begin(), kept.end());
    std::sort(held.begin(), held.end());
    std::set_difference(held.begin(), held.end(), kept.begin(), kept.end(),
                        std::back_inserter(out.freed));
  }

  const Input& in_;
  const Placed& placed_;
  Pages pages_;
  std::vector<int32_t> old_of_new_;
  std::vector<uint64_t> sent_;  // bytes that an old rank sends to others
  Plan plan_;
};

}  // namespace

Result<Plan> MakePlan(const Input& input) {
  TANGRAM_RETURN_IF_ERROR(Validate(input));
  Result<Placed> placed = PlaceRequests(input);
  if (!placed.ok()) return placed.status();
  return Planner(input, *placed).Run();
}

}  // namespace tangram::kv
