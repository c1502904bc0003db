// Kernel `gather_blocks`: copies blocks of one size by their numbers, into a buffer, out of one, or
// from pool to pool. It is for blocks that changed while the others were copied.
#pragma once

#include "kernels/lines.h"
#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

TANGRAM_DEVICE uint32_t AccessOf(const GatherBlocksParameters& p) {
  return AccessOf(p.to | p.from | (p.count > 1 || p.to_blocks != 0 ? p.to_pitch : 0) |
                  (p.count > 1 || p.from_blocks != 0 ? p.from_pitch : 0));
}
TANGRAM_DEVICE uint64_t TilesOf(const GatherBlocksParameters& p) {
  return TilesOf(p.count, p.bytes, AccessOf(p));
}

template <typename Memory>
struct BlockLines {
  using Grid = Radices<2>;
  const GatherBlocksParameters& p;
  uint64_t bytes, lines;
  Memory& memory;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const { return {{words}}; }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return p.from + NumberOf(p.from_blocks, place.digit[1]) * p.from_pitch;
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t) const {
    return p.to + NumberOf(p.to_blocks, place.digit[1]) * p.to_pitch;
  }
  TANGRAM_DEVICE constexpr uint32_t Targets() const { return 1; }

 private:
  TANGRAM_DEVICE uint64_t NumberOf(uint64_t list, uint64_t index) const {
    return list == 0 ? index : memory.template Read<uint32_t>(list + index * sizeof(uint32_t));
  }
};

template <typename Memory>
TANGRAM_DEVICE void GatherBlocks(const Where& where, const GatherBlocksParameters& p,
                                 Memory& memory) {
  const Share share = ShareOf(TilesOf(p), where.block, where.blocks);
  const BlockLines<Memory> lines{p, p.bytes, p.count, memory};
  for (uint64_t tile = share.begin; tile < share.end; ++tile) {
    memory.Round();
    CopyTile(where, lines, AccessOf(p), tile, memory);
  }
}

}  // namespace tangram::kernels
