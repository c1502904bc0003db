// Kernels `kv_by_head` and `kv_latent`: copy the bytes of a KV plan's moves (agent/kv: a page is
// one KV head of one layer for a block of positions; the engine's format describes its pages in
// strides).
#pragma once

#include "kernels/lines.h"
#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

TANGRAM_DEVICE uint32_t AccessOf(const KvMove& move) {
  uint64_t bits = move.from | move.to;
  if (move.tokens > 1) bits |= move.from_token_stride | move.to_token_stride;
  if (move.parts > 1) bits |= move.from_part_stride | move.to_part_stride;
  if (move.pages > 1) bits |= move.from_page_stride | move.to_page_stride;
  return AccessOf(bits);
}
TANGRAM_DEVICE uint64_t TilesOf(const KvMove& move) {
  return TilesOf(move.pages * move.parts * move.tokens, move.row_bytes, AccessOf(move));
}

// Lines are positions of a part (K or V) of a page.
struct KvLines {
  using Grid = Radices<4, uint32_t>;
  const KvMove& move;
  uint64_t bytes, lines;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const {
    return {{static_cast<uint32_t>(words), static_cast<uint32_t>(move.tokens),
             static_cast<uint32_t>(move.parts)}};
  }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return move.from + place.digit[1] * move.from_token_stride +
           place.digit[2] * move.from_part_stride + place.digit[3] * move.from_page_stride;
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t) const {
    return move.to + place.digit[1] * move.to_token_stride + place.digit[2] * move.to_part_stride +
           place.digit[3] * move.to_page_stride;
  }
  TANGRAM_DEVICE constexpr uint32_t Targets() const { return 1; }
};

template <typename Memory>
TANGRAM_DEVICE void KvByHead(const Where& where, const KvByHeadParameters& p, Memory& memory) {
  const Share share = ShareOf(p.units, where.block, where.blocks);
  Cursor<KvMove> cursor(p.moves, p.count, p.units);
  for (uint64_t unit = share.begin; unit < share.end; ++unit) {
    memory.Round();
    const KvMove& move = cursor.At(memory, unit);
    CopyTile(where, KvLines{move, move.row_bytes, move.pages * move.parts * move.tokens},
             AccessOf(move), unit - move.first, memory);
  }
}

// Lines are positions of a block; each is copied to every target.
template <typename Memory>
struct LatentLines {
  using Grid = Radices<2>;
  const KvLatentParameters& p;
  const LatentMove& move;
  uint64_t bytes, lines;
  uint64_t targets_at;  // address of the move's list of targets
  Memory& memory;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const { return {{words}}; }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return move.from + place.digit[1] * p.from_token_stride;
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t target) const {
    return memory.template Read<uint64_t>(targets_at + target * sizeof(uint64_t)) +
           place.digit[1] * p.to_token_stride;
  }
  TANGRAM_DEVICE uint32_t Targets() const { return static_cast<uint32_t>(p.targets_of_each); }
};

template <typename Memory>
TANGRAM_DEVICE void KvLatent(const Where& where, const KvLatentParameters& p, Memory& memory) {
  const Share share = ShareOf(p.units, where.block, where.blocks);
  Cursor<LatentMove> cursor(p.moves, p.count, p.units);
  for (uint64_t unit = share.begin; unit < share.end; ++unit) {
    memory.Round();
    const LatentMove& move = cursor.At(memory, unit);
    const uint64_t targets = p.targets + cursor.number() * p.targets_of_each * sizeof(uint64_t);
    CopyTile(where, LatentLines<Memory>{p, move, p.row_bytes, move.tokens, targets, memory},
             static_cast<uint32_t>(p.width), unit - move.first, memory);
  }
}

}  // namespace tangram::kernels
