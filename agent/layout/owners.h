// Who is given what by a layout, found without listing any rank's pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::layout {

// Four bytes for each (MoE layer, expert), and for each further copy; the layout is valid and
// outlives it.
class Owners {
 public:
  Owners(const v1::Layout& layout, const GeometryView& geometry);

  // Whether one of `ranks` (by rank: true) has a piece that covers the run. Every piece of the
  // expert covers a run without granules: it has the tail.
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
