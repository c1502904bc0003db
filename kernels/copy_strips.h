// Kernel `copy_strips`: the move of shards whose parts are columns, and of anything else that lies
// in lines.
//
// A strip is cut into tiles of kTileWords words; of a tile, threads that are neighbours take words
// that are neighbours, across the ends of lines. So a warp's request is whole lines wherever they
// are short, and each thread has kBatch loads under way before it stores.
#pragma once

#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

constexpr uint32_t kTileWords = 4096;

TANGRAM_DEVICE uint32_t WidthOf(const CopyStrip& strip) {
  const uint64_t pitches = strip.lines > 1 ? strip.to_pitch | strip.from_pitch : 0;
  return WidthOf(strip.to | strip.from | pitches);
}
// The last word of a line may be cut.
TANGRAM_DEVICE uint64_t WordsOfLine(const CopyStrip& strip) {
  const uint32_t width = WidthOf(strip);
  return (strip.bytes + width - 1) / width;
}
TANGRAM_DEVICE uint64_t TilesOf(const CopyStrip& strip) {
  return (strip.lines * WordsOfLine(strip) + kTileWords - 1) / kTileWords;
}

// Words of a strip, each `step` after the one before, as addresses.
struct StripWords {
  uint64_t line, column, words_of_line;  // of the next
  uint64_t step_lines, step_columns;

  TANGRAM_DEVICE StripWords(uint64_t word, uint64_t step, uint64_t words) : words_of_line(words) {
    // A division of 64 bits takes a hundred instructions, and hardly a strip has so many words.
    if (word <= UINT32_MAX && words <= UINT32_MAX) {
      line = static_cast<uint32_t>(word) / static_cast<uint32_t>(words);
    } else {
      line = word / words;
    }
    column = word - line * words;
    step_lines = words > step ? 0 : static_cast<uint32_t>(step) / static_cast<uint32_t>(words);
    step_columns = step - step_lines * words;
  }
  TANGRAM_DEVICE uint64_t From(const CopyStrip& strip, uint32_t width) const {
    return strip.from + line * strip.from_pitch + column * width;
  }
  TANGRAM_DEVICE uint64_t To(const CopyStrip& strip, uint32_t width) const {
    return strip.to + line * strip.to_pitch + column * width;
  }
  TANGRAM_DEVICE void Advance() {
    line += step_lines;
    column += step_columns;
    if (column >= words_of_line) {
      column -= words_of_line;
      ++line;
    }
  }
};

// Of `count` words from `at` on those that a line's end cuts, byte by byte: words of column
// `whole`.
template <typename Memory>
TANGRAM_DEVICE void CopyCut(const CopyStrip& strip, StripWords at, uint64_t whole, uint32_t width,
                            uint64_t count, Memory& memory) {
  TANGRAM_NO_UNROLL
  for (uint64_t i = 0; i < count; ++i, at.Advance()) {
    if (at.column != whole) continue;
    const uint64_t from = at.From(strip, width), to = at.To(strip, width);
    TANGRAM_NO_UNROLL
    for (uint64_t b = 0; b < strip.bytes - whole * width; ++b) {
      memory.template Store<uint8_t>(to + b, memory.template Load<uint8_t>(from + b));
    }
  }
}

// One thread's words of a tile.
template <typename Word, typename Memory>
TANGRAM_DEVICE void CopyTile(const Where& where, const CopyStrip& strip, uint64_t tile,
                             Memory& memory) {
  constexpr uint32_t kWidth = sizeof(Word), kBatch = kWidth >= 8 ? 8 : 4;
  const uint64_t words_of_line = (strip.bytes + kWidth - 1) / kWidth;
  const uint64_t begin = tile * kTileWords;
  const uint64_t end = Smaller(begin + kTileWords, strip.lines * words_of_line);
  // The last word of a line, if it is cut, is not copied with the others.
  const uint32_t cut = strip.bytes % kWidth;
  const uint64_t whole = words_of_line - (cut == 0 ? 0 : 1);
  StripWords at(begin + where.thread, where.threads, words_of_line);
  for (uint64_t w = begin + where.thread; w < end; w += uint64_t{kBatch} * where.threads) {
    const StripWords first = at;
    const uint64_t have = (end - w + where.threads - 1) / where.threads;
    Word words[kBatch];
    uint64_t to[kBatch];
    uint32_t loaded = 0;
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kBatch; ++i, at.Advance()) {
      if (i < have && at.column < whole) {
        words[i] = memory.template Load<Word>(at.From(strip, kWidth));
        to[i] = at.To(strip, kWidth);
        loaded |= 1u << i;
      }
    }
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kBatch; ++i) {
      if ((loaded >> i & 1) != 0) memory.template Store<Word>(to[i], words[i]);
    }
    if (cut != 0) CopyCut(strip, first, whole, kWidth, Smaller<uint64_t>(have, kBatch), memory);
  }
}

template <typename Memory>
TANGRAM_DEVICE void CopyStrips(const Where& where, const CopyStripsParameters& p, Memory& memory) {
  const Share share = ShareOf(p.units, where.block, where.blocks);
  Cursor<CopyStrip> cursor(p.strips, p.count, p.units);
  for (uint64_t i = share.begin; i < share.end; ++i) {
    // On a ring; start < units.
    const uint64_t unit = i < p.units - p.start ? p.start + i : i - (p.units - p.start);
    const CopyStrip& strip = cursor.At(memory, unit);
    const uint64_t tile = unit - strip.first;
    switch (WidthOf(strip)) {
      case 16:
        CopyTile<Word16>(where, strip, tile, memory);
        break;
      case 8:
        CopyTile<uint64_t>(where, strip, tile, memory);
        break;
      case 4:
        CopyTile<uint32_t>(where, strip, tile, memory);
        break;
      case 2:
        CopyTile<uint16_t>(where, strip, tile, memory);
        break;
      default:
        CopyTile<uint8_t>(where, strip, tile, memory);
    }
  }
}

}  // namespace tangram::kernels
