// Layouts and plans of a simulated world, in the plainest way that is valid: every layer has g = 1,
// and what a rank holds already decides where its pieces lie (docs/architecture.md, section 8).
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

// What each member holds, as its agent says.
using Inventories = std::map<std::string, const v1::Inventory*>;

struct Planner {
  const layout::GeometryView& geometry;
  uint32_t banks;  // of every layout
  const Inventories& inventories;
  Dice& dice;

  // The first layout of these members.
  v1::Layout First(const std::vector<v1::Member>& members) const;
  // The same ranks; experts are dealt anew to those that are `active`, in this bank or another.
  v1::Layout Dealt(const v1::Layout& from, const std::vector<bool>& active) const;
  // These members more, which own nothing yet.
  v1::Layout Joined(const v1::Layout& from, const std::vector<v1::Member>& members) const;
  // Without the ranks that own nothing.
  v1::Layout Left(const v1::Layout& from) const;
  // Of the survivors, in their order; what is lost goes to those with the fewest.
  v1::Layout Repaired(const v1::Layout& from, const std::vector<std::string>& survivors) const;

  // What one member does for the target. `from`: the layout in force; null: none.
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
