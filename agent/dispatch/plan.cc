#include "agent/dispatch/plan.h"

#include <algorithm>
#include <string>

namespace tangram::dispatch {

namespace {

// kInTurn: no replica is available.
template <typename Alive>
uint32_t ChoiceOf(const LayerRoutes& layer, uint32_t expert, uint32_t turn, const Alive& alive) {
  const auto there = [&](uint32_t choice) {
    return std::ranges::all_of(layer.RanksOf(choice), alive);
  };
  const uint32_t first = layer.first[expert], end = layer.first[expert + 1];
  const uint32_t own = layer.own[expert];
  if (own != kInTurn && there(own)) return own;
  // Available replicas take turns, so a lost one's rows are spread over all of them.
  uint32_t left = 0;
  for (uint32_t choice = first; choice < end; ++choice) left += there(choice) ? 1 : 0;
  if (left == 0) return kInTurn;
  uint32_t before = turn % left, choice = first;
  while (!there(choice) || before-- != 0) ++choice;
  return choice;
}

}  // namespace

Status Choose(const Format& format, const LayerRoutes& layer, const Rows& rows,
              std::span<const uint8_t> active, uint32_t ranks, std::span<uint32_t> turns,
              Plan* plan) {
  plan->to.resize(ranks);
  for (Outgoing& to : plan->to) {
    to.rows.clear();
    to.choices.clear();
  }
  plan->routed.assign(format.experts, 0);
  plan->homeless.clear();
  const uint32_t top_k = format.top_k;
  const auto alive = [&](uint32_t rank) { return active.empty() || active[rank] != 0; };
  for (uint32_t row = 0; row < rows.count; ++row) {
    for (uint32_t k = 0; k < top_k; ++k) {
      const int32_t e = rows.experts[size_t{row} * top_k + k];
      if (e < 0 || static_cast<uint32_t>(e) >= format.experts)
        return {Code::kInvalid, "row " + std::to_string(row) + " is for expert " +
                                    std::to_string(e) + " of " + std::to_string(format.experts)};
      ++plan->routed[e];
      const uint32_t choice = ChoiceOf(layer, static_cast<uint32_t>(e), turns[e]++, alive);
      if (choice == kInTurn) {
        plan->homeless.push_back({row, k, e});
        continue;
      }
      for (const uint32_t rank : layer.RanksOf(choice)) {
        Outgoing& to = plan->to[rank];
        if (to.rows.empty() || to.rows.back() != row) {
          to.rows.push_back(row);
          to.choices.resize(to.choices.size() + top_k, kNone);
        }
        to.choices[to.choices.size() - top_k + k] = static_cast<int32_t>(choice);
      }
    }
  }
  return OkStatus();
}

}  // namespace tangram::dispatch
