// Slots, the unit of transfer between two ranks. The writer cuts a message (the rows of one rank
// for another, or the returned partial sums) into slots of whole rows, of any size: first the
// metadata of each row, then the rows. Pure.
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
  Element x = Element::kBf16;     // input of callers: kF32, kBf16
  Element wire = Element::kBf16;  // rows in slots: as x, or kFp8
  Element sums = Element::kBf16;  // partial sums in slots: kF32, kBf16, kFixed
  uint32_t most_tokens = 0;       // maximum per rank and dispatch; 0: any
  bool operator==(const Format&) const = default;

  // kInvalid names the field.
  Status Check() const;
  // The experts' outputs: BF16 if sums are, else F32. Callers get F32, BF16 or int64.
  Element outputs() const { return sums == Element::kBf16 ? Element::kBf16 : Element::kF32; }
  // Bytes from row to row in a slot: a multiple of 8.
  size_t stride(Lane lane) const;
  // Metadata of a row. Dispatch: choices [top_k] int32 and weights [top_k] F32. Combine: one
  // uint32, whose bit k is set if the k-th choice is missing in the sum.
  size_t meta_bytes(Lane lane) const;
};

// Host byte order: ranks have one build and little-endian machines.
struct SlotHead {
  static constexpr uint32_t kMagic = 0x54475334;

  uint32_t magic = kMagic, lane = 0;
  uint64_t epoch = 0, pair = 0;
  uint32_t total = 0;  // rows of the message
  uint32_t metas = 0;  // rows with metadata here, after those of earlier slots
  uint32_t rows = 0;   // rows here, after those of earlier slots
  uint32_t top_k = 0, stride = 0;
  uint32_t unused[5] = {};
};
static_assert(sizeof(SlotHead) == 64);

// Offsets in a slot.
constexpr size_t MetasAt() { return sizeof(SlotHead); }
constexpr size_t RowsAt(size_t metas, size_t meta_bytes) {
  return (sizeof(SlotHead) + metas * meta_bytes + 63) / 64 * 64;
}
// The smallest room that a link must offer: a head, and one row with its metadata.
size_t LeastSlot(const Format& format);
// Bytes of a slot with a whole message of `rows` rows.
size_t WholeSlot(const Format& format, Lane lane, uint64_t rows);

// Progress of a message.
struct Progress {
  bool begun = false;
  uint32_t total = 0, metas = 0, rows = 0;
  bool complete() const { return begun && metas == total && rows == total; }
};

// Cuts the rest of a message into a slot for `room` bytes: the number of metas and rows, and the
// size; 0 bytes: not even one fits.
struct Cut {
  uint32_t metas = 0, rows = 0;
  size_t bytes = 0;
};
Cut CutFor(const Format& format, Lane lane, const Progress& sent, size_t room);

// HeadOf returns a copy of the head. Follows checks that it fits the slot and the message's
// progress. kInternal: it does not, so the peer is invalid.
Result<SlotHead> HeadOf(std::span<const uint8_t> slot);
Status Follows(const Format& format, const SlotHead& head, size_t bytes, const Progress& came);

}  // namespace tangram::dispatch
