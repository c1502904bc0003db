// Kernel `copy_strips`: copies lines at equal distances, such as shards that consist of columns.
#pragma once

#include "kernels/lines.h"
#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

TANGRAM_DEVICE uint32_t AccessOf(const CopyStrip& strip) {
  const uint64_t pitches = strip.lines > 1 ? strip.to_pitch | strip.from_pitch : 0;
  return AccessOf(strip.to | strip.from | pitches);
}
TANGRAM_DEVICE uint64_t TilesOf(const CopyStrip& strip) {
  return TilesOf(strip.lines, strip.bytes, AccessOf(strip));
}

struct StripLines {
  using Grid = Radices<2>;
  const CopyStrip& strip;
  uint64_t bytes, lines;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const { return {{words}}; }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return strip.from + place.digit[1] * strip.from_pitch;
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t) const {
    return strip.to + place.digit[1] * strip.to_pitch;
  }
  TANGRAM_DEVICE constexpr uint32_t Targets() const { return 1; }
};

template <typename Memory>
TANGRAM_DEVICE void CopyStrips(const Where& where, const CopyStripsParameters& p, Memory& memory) {
  const Share share = ShareOf(p.units, where.block, where.blocks);
  Cursor<CopyStrip> cursor(p.strips, p.count, p.units);
  for (uint64_t i = share.begin; i < share.end; ++i) {
    memory.Round();
    // Units form a ring that begins at `start`.
    const uint64_t unit = i < p.units - p.start ? p.start + i : i - (p.units - p.start);
    const CopyStrip& strip = cursor.At(memory, unit);
    CopyTile(where, StripLines{strip, strip.bytes, strip.lines}, AccessOf(strip),
             unit - strip.first, memory);
  }
}

}  // namespace tangram::kernels
