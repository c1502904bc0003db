// Kernel `dispatch_send`: writes each row once to each rank that has experts for it, directly into
// that rank's memory: unchanged, or as FP8 e4m3 with an fp32 scale per 128 numbers.
#pragma once

#include "kernels/arithmetic.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "kernels/lines.h"

namespace tangram::kernels {

// Copies listed rows to adjacent lines.
template <typename Memory>
struct ListedLines {
  using Grid = Radices<2>;
  uint64_t from, list, to, to_pitch;
  uint64_t bytes, lines;
  Memory& memory;

  TANGRAM_DEVICE Grid GridOf(uint64_t words) const { return {{words}}; }
  TANGRAM_DEVICE uint64_t From(const Grid::Place& place) const {
    return from + Word(memory, list, place.digit[1]) * bytes;
  }
  TANGRAM_DEVICE uint64_t To(const Grid::Place& place, uint32_t) const {
    return to + place.digit[1] * to_pitch;
  }
  TANGRAM_DEVICE constexpr uint32_t Targets() const { return 1; }
  TANGRAM_DEVICE uint32_t Access() const { return AccessOf(from | bytes | to | to_pitch); }
};

template <typename Memory>
TANGRAM_DEVICE float NumberAt(uint32_t element, uint64_t row, uint64_t index, Memory& memory) {
  return element == kRowF32 ? LoadFloat(memory, row + index * 4)
                            : LoadBf16(memory, row + index * 2);
}

// A scale is the largest magnitude of its block over 448. A block that is too small for a finite
// inverse has scale 1.
struct Fp8Scale {
  float scale = 1, inverse = 1;
};
TANGRAM_DEVICE Fp8Scale ScaleOf(uint32_t largest) {
  const float most = OfBits(largest);
  if (!(most > OfBits(0x0d800000))) return {};  // 2^-100
  const float scale = Quotient(most, kFp8Most);
  return {scale, Quotient(1, scale)};
}
// As integers, magnitudes order like the numbers; NaN is ignored.
TANGRAM_DEVICE uint32_t LargerMagnitude(uint32_t bits, uint32_t largest) {
  const uint32_t magnitude = bits & 0x7fffffff;
  return magnitude <= 0x7f800000 && magnitude > largest ? magnitude : largest;
}
// The n-th number of a word, as fp32.
TANGRAM_DEVICE uint32_t NumberOf(const Word16& word, uint32_t n, uint32_t element) {
  if (element == kRowF32)
    return static_cast<uint32_t>((n < 2 ? word.low : word.high) >> (32 * (n % 2)));
  return static_cast<uint32_t>((n < 4 ? word.low : word.high) >> (16 * (n % 4)) & 0xffff) << 16;
}

// Eight threads convert the blocks of a rank's rows. Each reads whole blocks, since no thread waits
// for another. At any time the eight of one block read eight adjacent words, so they load whole
// sectors, seven times in eight from the nearest cache. Each keeps the words that it converts.
template <typename Memory>
class Fp8Blocks {
 public:
  static constexpr uint32_t kThreads = 8, kTile = 512;  // blocks
  static constexpr uint32_t kNumbers = 128;

  TANGRAM_DEVICE Fp8Blocks(const DispatchParameters& p, const ListedLines<Memory>& lines,
                           Memory& memory)
      : p_(p), lines_(lines), memory_(memory), of_row_(ScalesOfRow(kRowFp8, p.hidden)) {}

  TANGRAM_DEVICE static uint64_t TilesOf(const DispatchParameters& p, uint64_t rows) {
    return (rows * ScalesOfRow(kRowFp8, p.hidden) + kTile - 1) / kTile;
  }

  TANGRAM_DEVICE void Convert(const Where& where, uint64_t tile) {
    const uint64_t end = Smaller<uint64_t>((tile + 1) * kTile, lines_.lines * of_row_);
    const uint32_t lane = where.thread % kThreads;
    for (uint64_t b = tile * kTile + where.thread / kThreads; b < end;
         b += where.threads / kThreads) {
      memory_.Round();
      const uint64_t line = b / of_row_, first = b % of_row_ * kNumbers;
      const uint64_t from = lines_.from + Word(memory_, lines_.list, line) * lines_.bytes;
      const uint64_t to = lines_.to + line * lines_.to_pitch;
      const uint64_t scale_at = to + ScalesAt(p_.hidden) + b % of_row_ * 4;
      if (from % 16 == 0 && to % 16 == 0 && first + kNumbers <= p_.hidden) {
        if (p_.x == kRowF32) {
          Whole<kRowF32>(from + first * 4, to + first, scale_at, lane);
        } else {
          Whole<kRowBf16>(from + first * 2, to + first, scale_at, lane);
        }
      } else if (lane == 0) {
        Any(from, first, to, scale_at);
      }
    }
  }

 private:
  template <uint32_t kElement>
  TANGRAM_DEVICE void Whole(uint64_t from, uint64_t to, uint64_t scale_at, uint32_t lane) {
    constexpr uint32_t kOf = kElement == kRowF32 ? 4 : 8;  // numbers per word
    constexpr uint32_t kMine = kNumbers / kOf / kThreads;
    Word16 mine[kMine];
    uint32_t largest = 0;
    TANGRAM_UNROLL
    for (uint32_t m = 0; m < kMine; ++m) {
      TANGRAM_UNROLL
      for (uint32_t i = 0; i < kThreads; ++i) {
        const uint64_t word = m * kThreads + (lane ^ i);
        const Word16 found = memory_.template Load<Word16>(from + word * 16);
        if (i == 0) mine[m] = found;
        TANGRAM_UNROLL
        for (uint32_t n = 0; n < kOf; ++n)
          largest = LargerMagnitude(NumberOf(found, n, kElement), largest);
      }
    }
    const Fp8Scale scale = ScaleOf(largest);
    TANGRAM_UNROLL
    for (uint32_t m = 0; m < kMine; ++m) {
      uint64_t out = 0;
      TANGRAM_UNROLL
      for (uint32_t n = 0; n < kOf; ++n) {
        const float number = Product(OfBits(NumberOf(mine[m], n, kElement)), scale.inverse);
        out |= static_cast<uint64_t>(ToFp8(BitsOf(number))) << (8 * n);
      }
      const uint64_t at = to + (m * kThreads + lane) * kOf;
      if constexpr (kOf == 8) {
        memory_.template Store<uint64_t>(at, out);
      } else {
        memory_.template Store<uint32_t>(at, static_cast<uint32_t>(out));
      }
    }
    if (lane == 0) StoreFloat(memory_, scale_at, scale.scale);
  }

  // One number at a time: the last block of a row, or rows that are not aligned.
  TANGRAM_DEVICE void Any(uint64_t from, uint64_t first, uint64_t to, uint64_t scale_at) {
    const uint64_t end = Smaller<uint64_t>(first + kNumbers, p_.hidden);
    uint32_t largest = 0;
    for (uint64_t i = first; i < end; ++i)
      largest = LargerMagnitude(BitsOf(NumberAt(p_.x, from, i, memory_)), largest);
    const Fp8Scale scale = ScaleOf(largest);
    for (uint64_t i = first; i < end; ++i) {
      const float number = Product(NumberAt(p_.x, from, i, memory_), scale.inverse);
      memory_.template Store<uint8_t>(to + i, ToFp8(BitsOf(number)));
    }
    StoreFloat(memory_, scale_at, scale.scale);
  }

  const DispatchParameters& p_;
  const ListedLines<Memory>& lines_;
  Memory& memory_;
  const uint32_t of_row_;
};

// Metadata of rows: which of a row's choices are at the rank, and weights.
template <typename Memory>
class Told {
 public:
  static constexpr uint64_t kTile = 4096;
  TANGRAM_DEVICE static uint64_t TilesOf(const DispatchParameters& p, uint64_t rows) {
    return (rows * p.top_k + kTile - 1) / kTile;
  }
  TANGRAM_DEVICE static void Tell(const Where& where, const DispatchParameters& p,
                                  const DispatchLayer& layer, uint32_t rank, uint64_t out,
                                  uint64_t tile, uint64_t rows, Memory& memory) {
    const uint64_t end = Smaller((tile + 1) * kTile, rows * p.top_k);
    for (uint64_t i = tile * kTile + where.thread; i < end; i += where.threads) {
      memory.Round();
      const uint64_t row = Word(memory, p.rows_to, uint64_t{rank} * p.most_tokens + i / p.top_k);
      const uint64_t from = row * p.top_k + i % p.top_k;
      int32_t choice = Signed(memory, p.choices, from);
      if (choice < 0 || !IsAt(memory, layer, static_cast<uint32_t>(choice), rank))
        choice = kChoiceElsewhere;
      memory.template Store<uint32_t>(out + p.inbox.choices + i * 4, static_cast<uint32_t>(choice));
      memory.template Store<uint32_t>(out + p.inbox.weights + i * 4, Word(memory, p.weights, from));
    }
  }
};

template <typename Memory>
TANGRAM_DEVICE void DispatchSend(const Where& where, const DispatchParameters& p, Memory& memory) {
  World<Memory> world(p, memory);
  const DispatchLayer layer = world.layer();
  const uint32_t ranks = world.ranks(), self = world.self();
  const uint64_t bytes = BytesOfRow(p.x, p.hidden);
  // A rank that was masked after the count still gets its rows: its memory exists.
  const auto rows_of = [&](uint32_t r) -> uint64_t { return Word(memory, p.sent, r); };
  const auto lines_of = [&](uint32_t r) {
    return ListedLines<Memory>{p.rows,
                               p.rows_to + uint64_t{r} * p.most_tokens * 4,
                               world.out(r) + p.inbox.rows[0],
                               p.inbox.stride[0],
                               bytes,
                               rows_of(r),
                               memory};
  };
  EachTile(
      where, ranks, self, [&](uint32_t r) { return Told<Memory>::TilesOf(p, rows_of(r)); },
      [&](uint32_t r, uint64_t tile) {
        Told<Memory>::Tell(where, p, layer, r, world.out(r), tile, rows_of(r), memory);
      });
  if (p.wire == kRowFp8) {
    EachTile(
        where, ranks, self, [&](uint32_t r) { return Fp8Blocks<Memory>::TilesOf(p, rows_of(r)); },
        [&](uint32_t r, uint64_t tile) {
          const ListedLines<Memory> lines = lines_of(r);
          Fp8Blocks<Memory>(p, lines, memory).Convert(where, tile);
        });
    return;
  }
  const uint32_t width = AccessOf(p.rows | bytes);
  EachTile(
      where, ranks, self, [&](uint32_t r) { return TilesOf(rows_of(r), bytes, width); },
      [&](uint32_t r, uint64_t tile) {
        memory.Round();
        CopyTile(where, lines_of(r), width, tile, memory);
      });
}

}  // namespace tangram::kernels
