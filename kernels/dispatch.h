// Dispatch and combine between the ranks of a world (docs/dispatch.md): the parameters of the
// kernels, and the layout of the memory that several ranks reach.
//
// A rank has an inbox for each rank of its world, itself included, and only that rank writes it.
// Data that changes with members, placement or failures is in a table in device memory: a graph,
// captured once, reads it again at each replay. Two pairs may be open concurrently: each uses one
// of two halves of the inboxes and of scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/memory.h"
#include "kernels/work.h"

namespace tangram::kernels {

// The values of dispatch::Element.
enum RowElement : uint32_t { kRowF32 = 1, kRowBf16 = 2, kRowFp8 = 3, kRowFixed = 4 };

constexpr uint32_t kMostPeers = 64;
constexpr uint32_t kDispatchChunk = 64;  // rows that one thread scans
// In choices (replicas): not at this rank; and nowhere, because all replicas are on masked ranks or
// the expert does not exist.
constexpr int32_t kChoiceElsewhere = -1, kChoiceNowhere = -2;

// The reason why a rank is masked.
enum MaskCause : uint32_t {
  kNotMasked = 0,
  kSilent = 1,     // no sign of it within the timeout
  kStuck = 2,      // sent heartbeats, but did not finish in three timeouts
  kMalformed = 3,  // claims more rows than a dispatch may have
  kTold = 4,       // masked from outside
};

struct DispatchPeer {
  uint64_t in = 0;   // its inbox in this rank's memory
  uint64_t out = 0;  // this rank's inbox in its memory
  uint32_t masked = kNotMasked;
  uint32_t unused = 0;
};

// The experts of a layer, like LayerRoutes in agent/dispatch; lists of uint32_t.
struct DispatchLayer {
  uint64_t first = 0;        // [experts + 1]
  uint64_t ranks_begin = 0;  // [choices + 1]
  uint64_t ranks = 0;
  uint64_t own = 0;    // int32_t [experts]: replica for this rank's own rows; -1: in turn
  uint64_t local = 0;  // int32_t [choices]: index among those with pieces here; -1: none
  uint32_t choices = 0, locals = 0;
};

// In device memory, at a fixed address.
struct DispatchTable {
  uint64_t epoch = 0;
  uint64_t next = 0;    // pairs of this epoch so far
  uint64_t layers = 0;  // DispatchLayer []
  uint32_t ranks = 0, self = 0;
  DispatchPeer peers[kMostPeers];
};

// Offsets in the half of an inbox that a pair uses. Rows have strides that are multiples of 16; all
// other parts begin at multiples of 128.
struct DispatchInbox {
  uint64_t beat = 0;  // of the whole inbox: a heartbeat, grows while its writer waits
  // Of the two lanes, dispatch and combine: a uint64_t that names the pair of the data here.
  uint64_t flags[2] = {};
  uint64_t total = 0;                 // uint32_t, rows of the dispatch
  uint64_t choices = 0, weights = 0;  // int32_t, float [most_tokens][top_k]
  uint64_t lacking = 0;               // uint32_t [most_tokens]: choices missing in a sum
  uint64_t unfit = 0;  // uint64_t [most_tokens]: a flag if a sum overflows fixed point
  uint64_t rows[2] = {}, stride[2] = {};
  // All data of a lane is one range, which begins with its flag and ends with its rows.
};

// State of one pair, in device memory.
struct DispatchPair {
  uint64_t flag = 0;
  uint64_t wanted = 0;           // received entries (row, expert)
  uint64_t bad_id = UINT64_MAX;  // the lowest (row, k) without a valid expert
  uint32_t kept = 0;             // entries that fit
  uint32_t wraps = 0;            // a sum overflows 64-bit fixed point
};

// State of dispatch_wait between two polls.
struct DispatchWait {
  uint64_t flag = 0;  // of the pair of this state
  uint64_t began = 0, looked = 0, told = 0;
  uint64_t heard[kMostPeers] = {}, beats[kMostPeers] = {};
};

// All kernels of a pair get the same parameters, except `lane`.
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

  // The caller's arrays: [tokens][hidden] of x, int32_t and float [tokens][top_k]; the experts'
  // outputs, [packed][hidden] of outputs; [tokens][hidden] of sums (F32, BF16, int64_t).
  uint64_t rows = 0, ids = 0, weights = 0;
  uint64_t given = 0, y = 0;

  // Scratch, uint32_t unless noted: for sending,
  uint64_t pair = 0;         // DispatchPair
  uint64_t wait = 0;         // DispatchWait
  uint64_t choices = 0;      // int32_t [most_tokens][top_k]
  uint64_t counts = 0;       // [chunks][experts]
  uint64_t rank_counts = 0;  // [chunks][kMostPeers]
  uint64_t rows_to = 0;      // [kMostPeers][most_tokens]: row numbers, ascending
  uint64_t slot_of = 0;  // int32_t [most_tokens][kMostPeers]: index among them; -1: not sent there
  uint64_t sent = 0;     // [kMostPeers]
  uint64_t routed = 0;   // [experts]: rows of this rank, for any destination
  uint64_t missing = 0;  // [most_tokens]: choices missing in y
  // and for receiving.
  uint64_t came = 0, summed = 0;  // [kMostPeers]: rows; whether its sums arrived
  uint64_t totals = 0;            // [kMostPeers * chunks]: rows for experts here
  uint64_t tally = 0;             // [kMostPeers * chunks][most_locals]
  uint64_t local_counts = 0;      // [most_locals]
  uint64_t local_offsets = 0;     // [most_locals + 1]
  uint64_t place = 0;             // int32_t [kMostPeers][most_tokens][top_k]: packed row; -1: none
  uint64_t from = 0;              // uint64_t [capacity]: source address of a packed row
  uint64_t packed = 0;            // [capacity][hidden] of wire
  uint64_t scales = 0;            // float [capacity][scales of a row], of FP8
};

// The value of a flag; it has 24 bits of the epoch, so a flag of an older epoch is never taken for
// a current one.
TANGRAM_DEVICE uint64_t FlagOf(uint64_t epoch, uint64_t pair) {
  return epoch << 40 | (pair + 1 & ((uint64_t{1} << 40) - 1));
}

TANGRAM_DEVICE uint32_t BytesOfNumber(uint32_t element) {
  return element == kRowFixed ? 8 : element == kRowF32 ? 4 : element == kRowBf16 ? 2 : 1;
}
TANGRAM_DEVICE uint32_t ScalesOfRow(uint32_t element, uint32_t hidden) {
  return element == kRowFp8 ? (hidden + 127) / 128 : 0;
}
// Offset of a row's scales.
TANGRAM_DEVICE uint64_t ScalesAt(uint32_t hidden) { return (uint64_t{hidden} + 3) / 4 * 4; }
TANGRAM_DEVICE uint64_t BytesOfRow(uint32_t element, uint32_t hidden) {
  if (element != kRowFp8) return uint64_t{hidden} * BytesOfNumber(element);
  return ScalesAt(hidden) + ScalesOfRow(element, hidden) * uint64_t{4};
}
// At least one.
TANGRAM_DEVICE uint32_t ChunksOf(uint32_t rows) {
  return rows == 0 ? 1 : (rows + kDispatchChunk - 1) / kDispatchChunk;
}

// The kernels' view of the table.
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

// Whether a choice (replica) of the layer needs the rank.
template <typename Memory>
TANGRAM_DEVICE bool IsAt(Memory& memory, const DispatchLayer& layer, uint32_t choice,
                         uint32_t rank) {
  const uint32_t end = Word(memory, layer.ranks_begin, choice + 1);
  for (uint32_t i = Word(memory, layer.ranks_begin, choice); i < end; ++i)
    if (Word(memory, layer.ranks, i) == rank) return true;
  return false;
}

// Calls use(rank, tile) for a block's share of the tiles of all ranks, in order, beginning with the
// rank after this one. So the ranks do not all write to the same one together.
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
