// Dispatch and combine between the ranks of a world (docs/dispatch.md): what its kernels are told,
// and what lies where in memory that several ranks reach.
//
// A rank has an inbox for each rank of its world, itself too, which that rank alone writes. What
// changes with members, placement or failures lies in a table in the device's memory: a graph that
// was captured once reads it anew at each replay. Two pairs may be open at once: each uses one of
// two halves of the inboxes, and of scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/memory.h"
#include "kernels/work.h"

namespace tangram::kernels {

// By the numbers of dispatch::Element.
enum RowElement : uint32_t { kRowF32 = 1, kRowBf16 = 2, kRowFp8 = 3, kRowFixed = 4 };

constexpr uint32_t kMostPeers = 64;
constexpr uint32_t kDispatchChunk = 64;  // rows that one thread looks through
// In choices: not at this rank; and at none, since all its copies are on masked ranks, or there is
// no such expert.
constexpr int32_t kChoiceElsewhere = -1, kChoiceNowhere = -2;

// Why a rank is masked.
enum MaskCause : uint32_t {
  kNotMasked = 0,
  kSilent = 1,     // nothing came from it for the timeout
  kStuck = 2,      // it told that it lives, and was not through after three times that
  kMalformed = 3,  // it says that it has more rows than a dispatch may
  kTold = 4,       // from outside
};

struct DispatchPeer {
  uint64_t in = 0;   // its inbox here
  uint64_t out = 0;  // where this rank writes for it: this rank's inbox there
  uint32_t masked = kNotMasked;
  uint32_t unused = 0;
};

// Of a layer's experts, as LayerRoutes in agent/dispatch has them; lists of uint32_t.
struct DispatchLayer {
  uint64_t first = 0;        // [experts + 1]
  uint64_t ranks_begin = 0;  // [choices + 1]
  uint64_t ranks = 0;
  uint64_t own = 0;    // int32_t [experts]: the choice for this rank's own rows; -1: all in turn
  uint64_t local = 0;  // int32_t [choices]: which of those with pieces here it is; -1: of none
  uint32_t choices = 0, locals = 0;
};

// In the device's memory, at one address for good.
struct DispatchTable {
  uint64_t epoch = 0;
  uint64_t next = 0;    // pairs of this epoch so far
  uint64_t layers = 0;  // DispatchLayer []
  uint32_t ranks = 0, self = 0;
  DispatchPeer peers[kMostPeers];
};

// Where things lie in the half of an inbox that a pair uses. Rows are strides apart, which are
// multiples of 16; everything else begins at multiples of 128.
struct DispatchInbox {
  uint64_t beat = 0;  // of the whole inbox: grows while its writer waits
  // Of the two lanes, dispatch and combine: a uint64_t that says of which pair what lies here is.
  uint64_t flags[2] = {};
  uint64_t total = 0;                 // uint32_t, rows of the dispatch
  uint64_t choices = 0, weights = 0;  // int32_t, float [most_tokens][top_k]
  uint64_t lacking = 0;               // uint32_t [most_tokens]: choices that are not in a sum
  uint64_t unfit = 0;  // uint64_t [most_tokens]: a flag, if a sum has no place in fixed point
  uint64_t rows[2] = {}, stride[2] = {};
  // Of a lane all lies in one range, which begins with its flag and ends with its rows.
};

// One pair, in the device's memory.
struct DispatchPair {
  uint64_t flag = 0;
  uint64_t wanted = 0;           // rows by expert that came
  uint64_t bad_id = UINT64_MAX;  // the least (row, k) that is for no expert
  uint32_t kept = 0;             // of them: those there is room for
  uint32_t wraps = 0;            // a sum leaves 64-bit fixed point
};

// Where dispatch_wait remembers between two looks.
struct DispatchWait {
  uint64_t flag = 0;  // of the pair that this is of
  uint64_t began = 0, looked = 0, told = 0;
  uint64_t heard[kMostPeers] = {}, beats[kMostPeers] = {};
};

// All kernels of a pair are told the same, but for `lane`.
struct DispatchParameters {
  uint32_t hidden = 0, top_k = 0, experts = 0, most_tokens = 0;
  uint32_t x = 0, wire = 0, outputs = 0, sums = 0;  // RowElement
  uint32_t layer = 0, tokens = 0, lane = 0;
  uint32_t most_locals = 0;  // choices with pieces on one rank
  uint64_t capacity = 0;     // of packed rows
  uint64_t timeout = 0;      // ns
  uint64_t table = 0;        // DispatchTable
  uint64_t turns = 0;        // uint32_t [layers][experts]
  DispatchInbox inbox;

  // The caller's: [tokens][hidden] of x, int32_t and float [tokens][top_k]; what experts give
  // [packed][hidden] of outputs; [tokens][hidden] of sums (F32, BF16, int64_t).
  uint64_t rows = 0, ids = 0, weights = 0;
  uint64_t given = 0, y = 0;

  // Scratch, uint32_t if not said: of what goes,
  uint64_t pair = 0;         // DispatchPair
  uint64_t wait = 0;         // DispatchWait
  uint64_t choices = 0;      // int32_t [most_tokens][top_k]
  uint64_t counts = 0;       // [chunks][experts]
  uint64_t rank_counts = 0;  // [chunks][kMostPeers]
  uint64_t rows_to = 0;      // [kMostPeers][most_tokens]: which rows, ascending
  uint64_t slot_of = 0;      // int32_t [most_tokens][kMostPeers]: where among them; -1: not there
  uint64_t sent = 0;         // [kMostPeers]
  uint64_t routed = 0;       // [experts]: rows of this rank, wherever they go
  uint64_t missing = 0;      // [most_tokens]: choices that are not in y
  // and of what comes.
  uint64_t came = 0, summed = 0;  // [kMostPeers]: rows; whether its sums came
  uint64_t totals = 0;            // [kMostPeers * chunks]: for experts here
  uint64_t tally = 0;             // [kMostPeers * chunks][most_locals]
  uint64_t local_counts = 0;      // [most_locals]
  uint64_t local_offsets = 0;     // [most_locals + 1]
  uint64_t place = 0;   // int32_t [kMostPeers][most_tokens][top_k]: in packed rows; -1: not there
  uint64_t from = 0;    // uint64_t [capacity]: where a packed row came to
  uint64_t packed = 0;  // [capacity][hidden] of wire
  uint64_t scales = 0;  // float [capacity][scales of a row], of FP8
};

// What a flag says; 24 bits of the epoch, so that what an older one left is none of this one's.
TANGRAM_DEVICE uint64_t FlagOf(uint64_t epoch, uint64_t pair) {
  return epoch << 40 | (pair + 1 & ((uint64_t{1} << 40) - 1));
}

TANGRAM_DEVICE uint32_t BytesOfNumber(uint32_t element) {
  return element == kRowFixed ? 8 : element == kRowF32 ? 4 : element == kRowBf16 ? 2 : 1;
}
TANGRAM_DEVICE uint32_t ScalesOfRow(uint32_t element, uint32_t hidden) {
  return element == kRowFp8 ? (hidden + 127) / 128 : 0;
}
// Where a row's scales begin.
TANGRAM_DEVICE uint64_t ScalesAt(uint32_t hidden) { return (uint64_t{hidden} + 3) / 4 * 4; }
TANGRAM_DEVICE uint64_t BytesOfRow(uint32_t element, uint32_t hidden) {
  if (element != kRowFp8) return uint64_t{hidden} * BytesOfNumber(element);
  return ScalesAt(hidden) + ScalesOfRow(element, hidden) * uint64_t{4};
}
// There is always one.
TANGRAM_DEVICE uint32_t ChunksOf(uint32_t rows) {
  return rows == 0 ? 1 : (rows + kDispatchChunk - 1) / kDispatchChunk;
}

// What kernels read of the table.
template <typename Memory>
class World {
 public:
  TANGRAM_DEVICE World(const DispatchParameters& p, Memory& memory) : p_(p), memory_(memory) {}

  TANGRAM_DEVICE uint32_t ranks() { return Word(offsetof(DispatchTable, ranks)); }
  TANGRAM_DEVICE uint32_t self() { return Word(offsetof(DispatchTable, self)); }
  TANGRAM_DEVICE uint64_t in(uint32_t rank) {
    return memory_.template Read<uint64_t>(At(rank) + offsetof(DispatchPeer, in));
  }
  TANGRAM_DEVICE uint64_t out(uint32_t rank) {
    return memory_.template Read<uint64_t>(At(rank) + offsetof(DispatchPeer, out));
  }
  TANGRAM_DEVICE bool masked(uint32_t rank) {
    return memory_.template Look<uint32_t>(At(rank) + offsetof(DispatchPeer, masked)) != kNotMasked;
  }
  TANGRAM_DEVICE void Mask(uint32_t rank, uint32_t cause) {
    memory_.template Publish<uint32_t>(At(rank) + offsetof(DispatchPeer, masked), cause);
  }
  TANGRAM_DEVICE DispatchLayer layer() {
    const auto layers = memory_.template Read<uint64_t>(p_.table + offsetof(DispatchTable, layers));
    return memory_.template Read<DispatchLayer>(layers + p_.layer * sizeof(DispatchLayer));
  }

 private:
  TANGRAM_DEVICE uint64_t At(uint32_t rank) const {
    return p_.table + offsetof(DispatchTable, peers) + rank * sizeof(DispatchPeer);
  }
  TANGRAM_DEVICE uint32_t Word(uint64_t offset) {
    return memory_.template Read<uint32_t>(p_.table + offset);
  }

  const DispatchParameters& p_;
  Memory& memory_;
};

// Entry `index` of a list of 32-bit words.
template <typename Memory>
TANGRAM_DEVICE uint32_t Word(Memory& memory, uint64_t list, uint64_t index) {
  return memory.template Read<uint32_t>(list + index * 4);
}
template <typename Memory>
TANGRAM_DEVICE int32_t Signed(Memory& memory, uint64_t list, uint64_t index) {
  return static_cast<int32_t>(Word(memory, list, index));
}

// Whether a choice of the layer needs the rank.
template <typename Memory>
TANGRAM_DEVICE bool IsAt(Memory& memory, const DispatchLayer& layer, uint32_t choice,
                         uint32_t rank) {
  const uint32_t end = Word(memory, layer.ranks_begin, choice + 1);
  for (uint32_t i = Word(memory, layer.ranks_begin, choice); i < end; ++i)
    if (Word(memory, layer.ranks, i) == rank) return true;
  return false;
}

// Calls use(rank, tile) for a block's share of the tiles of all ranks, one after another, beginning
// with the rank behind this one: so not all ranks write to the same one at once.
template <typename TilesOf, typename Use>
TANGRAM_DEVICE void EachTile(const Where& where, uint32_t ranks, uint32_t self, TilesOf&& tiles_of,
                             Use&& use) {
  uint64_t tiles = 0;
  for (uint32_t r = 0; r < ranks; ++r) tiles += tiles_of(r);
  const Share share = ShareOf(tiles, where.block, where.blocks);
  uint64_t begin = 0;
  uint32_t turn = 0;
  for (uint64_t tile = share.begin; tile < share.end; ++tile) {
    uint32_t rank = (self + 1 + turn) % ranks;
    for (uint64_t of = tiles_of(rank); tile - begin >= of; of = tiles_of(rank)) {
      begin += of;
      rank = (self + 1 + ++turn) % ranks;
    }
    use(rank, tile - begin);
  }
}

}  // namespace tangram::kernels
