// The copy that all kernels share whose bytes are lines: of a strip, of blocks, of pages of KV.
//
// The words of an item (one access each) are numbered line by line and cut into tiles of
// kTileWords. Neighbouring threads take neighbouring words of a tile, across the ends of lines, so
// a warp's request covers whole lines even if they are short. Each thread has up to eight loads in
// flight before it stores.
#pragma once

#include "kernels/memory.h"

namespace tangram::kernels {

constexpr uint32_t kTileWords = 4096;

// The digits of a word's number: word in its line, line in its group, group, ...
template <uint32_t kDigits, typename Digit = uint64_t>
struct Place {
  Digit digit[kDigits];
};

// Words per line, lines per group, ...; the last digit has no limit. Digits of 32 bits take half
// the registers, for items with fewer than 2^32 words.
template <uint32_t kDigits, typename Digit = uint64_t>
struct Radices {
  using Place = kernels::Place<kDigits, Digit>;
  Digit radix[kDigits - 1];

  TANGRAM_DEVICE Place PlaceOf(uint64_t word) const {
    Place out;
    TANGRAM_UNROLL
    for (uint32_t d = 0; d + 1 < kDigits; ++d) {
      // A 64-bit division takes a hundred instructions, and few items have so many words.
      const uint64_t left = word <= UINT32_MAX && radix[d] <= UINT32_MAX
                                ? static_cast<uint32_t>(word) / static_cast<uint32_t>(radix[d])
                                : word / radix[d];
      out.digit[d] = static_cast<Digit>(word - left * radix[d]);
      word = left;
    }
    out.digit[kDigits - 1] = static_cast<Digit>(word);
    return out;
  }
  // Advances the place by `step` words, without a division.
  TANGRAM_DEVICE void Advance(Place* place, const Place& step) const {
    Digit carry = 0;
    TANGRAM_UNROLL
    for (uint32_t d = 0; d + 1 < kDigits; ++d) {
      place->digit[d] += step.digit[d] + carry;
      carry = place->digit[d] >= radix[d] ? 1 : 0;
      place->digit[d] -= carry != 0 ? radix[d] : 0;
    }
    place->digit[kDigits - 1] += step.digit[kDigits - 1] + carry;
  }
};

// The access width for addresses and pitches, or-ed: 16, 4 or 1 bytes. Widths between would make
// the image a half larger, and little data needs them.
TANGRAM_DEVICE uint32_t AccessOf(uint64_t bits) {
  const uint32_t width = WidthOf(bits);
  return width == 8 ? 4 : width == 2 ? 1 : width;
}

TANGRAM_DEVICE uint64_t WordsOfLine(uint64_t bytes, uint32_t width) {
  return (bytes + width - 1) / width;
}
TANGRAM_DEVICE uint64_t TilesOf(uint64_t lines, uint64_t bytes, uint32_t width) {
  return (lines * WordsOfLine(bytes, width) + kTileWords - 1) / kTileWords;
}

// One thread's part of a tile, by words of one size.
//
// Lines is a class with Grid (its kind of Radices); `bytes` of a line; `lines`; GridOf(words), for
// lines of this many words; From(place) and To(place, target), the start of the line of a place;
// and Targets(), the number of destinations of a word.
template <typename Word, typename Lines, typename Memory>
class Tile {
 public:
  TANGRAM_DEVICE Tile(const Where& where, const Lines& lines, Memory& memory)
      : where_(where),
        lines_(lines),
        memory_(memory),
        words_(WordsOfLine(lines.bytes, kWidth)),
        // The last word of a line is copied by bytes if it extends beyond the line.
        whole_(lines.bytes / kWidth),
        grid_(lines.GridOf(words_)),
        step_(grid_.PlaceOf(where.threads)) {}

  TANGRAM_DEVICE void Copy(uint64_t tile) {
    const uint64_t begin = tile * kTileWords + where_.thread;
    const uint64_t end = Smaller((tile + 1) * kTileWords, lines_.lines * words_);
    if (begin >= end) return;
    Place place = grid_.PlaceOf(begin);
    for (uint64_t w = begin; w < end; w += uint64_t{kBatch} * where_.threads) {
      CopyBatch(&place, (end - w + where_.threads - 1) / where_.threads);
      request_ += kBatch;
    }
  }

 private:
  static constexpr uint32_t kWidth = sizeof(Word), kBatch = kWidth == 16 ? 8 : 4;
  static constexpr uint32_t kCutRequest = 1u << 31;
  using Grid = typename Lines::Grid;
  using Place = typename Grid::Place;

  // Copies a batch of words, or `have` if fewer.
  TANGRAM_DEVICE void CopyBatch(Place* place, uint64_t have) {
    const Place first = *place;
    Word words[kBatch];
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kBatch; ++i, grid_.Advance(place, step_)) {
      if (i < have && place->digit[0] < whole_) {
        memory_.Request(request_ + i);
        words[i] =
            memory_.template Load<Word>(lines_.From(*place) + uint64_t{place->digit[0]} * kWidth);
      }
    }
    *place = first;
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kBatch; ++i, grid_.Advance(place, step_)) {
      if (i >= have || place->digit[0] >= whole_) continue;
      memory_.Request(request_ + i);
      for (uint32_t t = 0; t < lines_.Targets(); ++t) {
        memory_.template Store<Word>(lines_.To(*place, t) + uint64_t{place->digit[0]} * kWidth,
                                     words[i]);
      }
    }
    if (whole_ != words_) CopyCut(first, Smaller<uint64_t>(have, kBatch));
  }

  // Of `count` words, copies those that the end of a line cuts.
  TANGRAM_DEVICE void CopyCut(Place place, uint64_t count) {
    TANGRAM_NO_UNROLL
    for (uint64_t i = 0; i < count; ++i, grid_.Advance(&place, step_)) {
      if (place.digit[0] != whole_) continue;
      memory_.Request(kCutRequest + request_ + static_cast<uint32_t>(i));
      TANGRAM_NO_UNROLL
      for (uint64_t b = whole_ * kWidth; b < lines_.bytes; ++b) {
        const auto byte = memory_.template Load<uint8_t>(lines_.From(place) + b);
        for (uint32_t t = 0; t < lines_.Targets(); ++t) {
          memory_.template Store<uint8_t>(lines_.To(place, t) + b, byte);
        }
      }
    }
  }

  const Where& where_;
  const Lines& lines_;
  Memory& memory_;
  const uint64_t words_, whole_;  // per line
  const Grid grid_;
  const Place step_;
  uint32_t request_ = 0;
};

// Copies a tile by words of `width` bytes (AccessOf all its addresses).
template <typename Lines, typename Memory>
TANGRAM_DEVICE void CopyTile(const Where& where, const Lines& lines, uint32_t width, uint64_t tile,
                             Memory& memory) {
  if (width == 16) return Tile<Word16, Lines, Memory>(where, lines, memory).Copy(tile);
  if (width == 4) return Tile<uint32_t, Lines, Memory>(where, lines, memory).Copy(tile);
  Tile<uint8_t, Lines, Memory>(where, lines, memory).Copy(tile);
}

}  // namespace tangram::kernels
