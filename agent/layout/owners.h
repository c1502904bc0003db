// Ranks to which a layout assigns a piece, found without listing any rank's pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::layout {

// Four bytes per (MoE layer, expert), and per replica. The layout must be valid and outlive it.
class Owners {
 public:
  Owners(const v1::Layout& layout, const GeometryView& geometry);

  // Whether one of `ranks` (by rank: true) has a piece that covers the run. A run without granules
  // (the tail) is covered by every piece of the expert.
  bool Give(uint32_t layer, uint32_t expert, Run run, const std::vector<bool>& ranks) const;
  // The ranks that have such a piece, in order of groups and positions.
  std::vector<uint32_t> Holders(uint32_t layer, uint32_t expert, Run run) const;

 private:
  const v1::Layout& layout_;
  const GeometryView& geometry_;
  // Groups of the layer that hold the expert: groups_[start_[i] .. start_[i + 1]) for
  // i = ordinal * experts + expert.
  std::vector<uint32_t> start_, groups_;
};

}  // namespace tangram::layout
