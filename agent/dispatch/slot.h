// Slots: what travels between two ranks. A message (the rows of one rank for another, or the
// partial sums that come back) is cut into slots of whole rows, at the writer's liking: first what
// is told of each row, then the rows. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/dispatch/link.h"
#include "agent/dispatch/numbers.h"

namespace tangram::dispatch {

// The rows of one layer, the same on all ranks.
struct Format {
  static constexpr uint32_t kMostTopK = kMostRows;

  uint32_t hidden = 0, top_k = 0, experts = 0;
  Element x = Element::kBf16;     // what callers bring: kF32, kBf16
  Element wire = Element::kBf16;  // how rows travel: as x, or kFp8
  Element sums = Element::kBf16;  // how partial sums travel: kF32, kBf16, kFixed
  uint32_t most_tokens = 0;       // of a rank in one dispatch; 0: any
  bool operator==(const Format&) const = default;

  // kInvalid, by name.
  Status Check() const;
  // What experts give: BF16 where sums are, else F32. What callers get: F32, BF16 or int64.
  Element outputs() const { return sums == Element::kBf16 ? Element::kBf16 : Element::kF32; }
  // From row to row of a slot: multiples of 8.
  size_t stride(Lane lane) const;
  // What is told of a row: dispatch choices [top_k] int32 and weights [top_k] F32; combine one
  // uint32, whose bit k says that the k-th choice is not in the sum.
  size_t meta_bytes(Lane lane) const;
};

// Host order: ranks are of one build and of little-endian machines.
struct SlotHead {
  static constexpr uint32_t kMagic = 0x54475334;

  uint32_t magic = kMagic, lane = 0;
  uint64_t epoch = 0, pair = 0;
  uint32_t total = 0;  // rows of the message
  uint32_t metas = 0;  // rows that are told of here, following those of the slots before
  uint32_t rows = 0;   // rows here, following those of the slots before
  uint32_t top_k = 0, stride = 0;
  uint32_t unused[5] = {};
};
static_assert(sizeof(SlotHead) == 64);

// Where things lie in a slot.
constexpr size_t MetasAt() { return sizeof(SlotHead); }
constexpr size_t RowsAt(size_t metas, size_t meta_bytes) {
  return (sizeof(SlotHead) + metas * meta_bytes + 63) / 64 * 64;
}
// The smallest room that a link must give: a head with one row and what is told of it.
size_t LeastSlot(const Format& format);
// A message of so many rows in one slot.
size_t WholeSlot(const Format& format, Lane lane, uint64_t rows);

// How far a message has come.
struct Progress {
  bool begun = false;
  uint32_t total = 0, metas = 0, rows = 0;
  bool complete() const { return begun && metas == total && rows == total; }
};

// Cuts the rest of a message into a slot for `room` bytes: how many metas and rows it has, and its
// size; 0 bytes: there is no room for any.
struct Cut {
  uint32_t metas = 0, rows = 0;
  size_t bytes = 0;
};
Cut CutFor(const Format& format, Lane lane, const Progress& sent, size_t room);

// A copy of the head, once everything that it says fits the slot and follows what came before.
// kInternal: it does not, and the peer is none of ours.
Result<SlotHead> HeadOf(std::span<const uint8_t> slot);
Status Follows(const Format& format, const SlotHead& head, size_t bytes, const Progress& came);

}  // namespace tangram::dispatch
