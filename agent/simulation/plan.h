// Simple valid layouts and plans of a simulated world: every layer has g = 1, and new pieces are
// placed around resident ones (docs/architecture.md, section 8).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/layout/geometry.h"
#include "agent/simulation/fibers.h"
#include "tangram/v1/plan.pb.h"

namespace tangram::simulation {

inline constexpr const char* kWorld = "sim";

// Each member's pieces, as its agent reports them.
using Inventories = std::map<std::string, const v1::Inventory*>;

struct Planner {
  const layout::GeometryView& geometry;
  uint32_t banks;  // of every layout
  const Inventories& inventories;
  Dice& dice;

  // The first layout of these members.
  v1::Layout First(const std::vector<v1::Member>& members) const;
  // The same ranks. Experts are dealt again to the `active` ranks, in this bank or another.
  v1::Layout Dealt(const v1::Layout& from, const std::vector<bool>& active) const;
  // With these additional members, which own nothing yet.
  v1::Layout Joined(const v1::Layout& from, const std::vector<v1::Member>& members) const;
  // Without the ranks that own no expert.
  v1::Layout Left(const v1::Layout& from) const;
  // The survivors, in their order. Lost experts go to the ranks with the fewest.
  v1::Layout Repaired(const v1::Layout& from, const std::vector<std::string>& survivors) const;

  // One member's part for the target. `from`: the active layout; null: none.
  v1::RankPart PartOf(const std::string& member, const v1::Layout* from,
                      const v1::Layout& target) const;

 private:
  // Owners by (layer, expert); ranks that own nothing have no attention either.
  using Deal = std::vector<std::vector<uint32_t>>;
  void Fill(const Deal& deal, const v1::Layout* from, bool may_move, v1::Layout* out) const;
};

// Whether a rank owns experts.
bool Owns(const v1::Layout& layout, uint32_t rank);

}  // namespace tangram::simulation
