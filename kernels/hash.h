// Kernels `hash_sums`, `copy_hash` and `hash_chain`: XXH3-64 of many ranges concurrently (xxh3.h
// describes how threads share a hash).
//
// hash_sums and copy_hash use four threads per block of 1,024 bytes, one per pair of lanes. Each
// loads 16 times 16 bytes, so a warp's request has 8 runs of 64. Sums go to scratch, 64 bytes per
// block. hash_chain uses four threads per range, which process its sums in order. The last of them
// to finish combines their results.
#pragma once

#include "kernels/parameters.h"
#include "kernels/work.h"
#include "kernels/xxh3.h"

namespace tangram::kernels {

// Blocks of a range. The last one is partial and follows its own rules; a short range has no sums.
TANGRAM_DEVICE uint64_t HashUnitsOf(uint64_t bytes) {
  return bytes <= xxh3::kShort ? 1 : (bytes - 1) / xxh3::kBlock + 1;
}

// The four threads of a range in hash_chain combine their results here; hash_sums zeroes it.
struct HashMeeting {
  uint64_t sum, arrived;
};

// Addresses in the scratch.
TANGRAM_DEVICE uint64_t SumsAt(const HashParameters& p, uint64_t unit, uint32_t pair) {
  return p.scratch + (unit * xxh3::kPairs + pair) * sizeof(Word16);
}
TANGRAM_DEVICE uint64_t MeetingAt(const HashParameters& p, uint64_t range) {
  return SumsAt(p, p.units, 0) + range * sizeof(HashMeeting);
}

// The first addresses of a pair's 16 bytes in each stripe of a block.
struct PairBytes {
  uint64_t from, to;
  uint32_t from_width, to_width;
};

// Adds up the bytes of `stripes` stripes (at most 16) and, if kCopy, copies them.
template <bool kCopy, typename Memory>
TANGRAM_DEVICE void AddStripes(Memory& memory, const PairBytes& at, uint32_t stripes, uint32_t pair,
                               xxh3::Pair* sums) {
  for (uint32_t s = 0; s < stripes; ++s) {
    memory.Request(s);
    const Word16 data = Load16(memory, at.from + s * xxh3::kStripe, at.from_width);
    if (kCopy) Store16(memory, at.to + s * xxh3::kStripe, at.to_width, data);
    xxh3::AddTo(sums, data, xxh3::kSecret[s + 2 * pair], xxh3::kSecret[s + 1 + 2 * pair]);
  }
}
// The same for a whole, aligned block, with all loads in flight together.
template <bool kCopy, typename Memory>
TANGRAM_DEVICE void AddBlock(Memory& memory, const PairBytes& at, const uint64_t (&keys)[17],
                             xxh3::Pair* sums) {
  Word16 data[xxh3::kStripes];
  TANGRAM_UNROLL
  for (uint32_t s = 0; s < xxh3::kStripes; ++s) {
    memory.Request(s);
    data[s] = memory.template Load<Word16>(at.from + s * xxh3::kStripe);
  }
  TANGRAM_UNROLL
  for (uint32_t s = 0; s < xxh3::kStripes; ++s) {
    memory.Request(s);
    if (kCopy) memory.template Store<Word16>(at.to + s * xxh3::kStripe, data[s]);
    xxh3::AddTo(sums, data[s], keys[s], keys[s + 1]);
  }
}

template <bool kCopy, typename Memory>
TANGRAM_DEVICE void HashOrCopy(const Where& where, const HashParameters& p, Memory& memory) {
  const uint32_t pair = where.thread % xxh3::kPairs;
  uint64_t keys[17];  // for stripe s the lower lane uses key s, the upper key s + 1
  TANGRAM_UNROLL
  for (uint32_t s = 0; s < 17; ++s) keys[s] = xxh3::kSecret[s + 2 * pair];

  const Share share = ShareOf(p.units, where.block, where.blocks);
  Cursor<HashRange> cursor(p.ranges, p.count, p.units);
  const uint64_t step = where.threads / xxh3::kPairs;
  for (uint64_t unit = share.begin + where.thread / xxh3::kPairs; unit < share.end; unit += step) {
    memory.Round();
    const HashRange& range = cursor.At(memory, unit);
    const uint64_t block = unit - range.first, done = block * xxh3::kBlock;
    if (block == 0 && pair == 0) {
      memory.template Store<Word16>(MeetingAt(p, cursor.number()), {0, 0});
    }
    const uint64_t mine = done + pair * sizeof(Word16);
    const PairBytes at{range.from + mine, range.to + mine, WidthOf(range.from), WidthOf(range.to)};
    const bool whole = done + xxh3::kBlock < range.bytes;
    xxh3::Pair sums;
    if (whole && Smaller(at.from_width, at.to_width) == sizeof(Word16)) {
      AddBlock<kCopy>(memory, at, keys, &sums);
    } else {
      // At least one byte of the last block is left for the end.
      const uint64_t left = Smaller<uint64_t>(range.bytes - done, xxh3::kBlock + 1);
      const uint32_t stripes = left == 0 ? 0 : static_cast<uint32_t>((left - 1) / xxh3::kStripe);
      AddStripes<kCopy>(memory, at, stripes, pair, &sums);
      if (kCopy && !whole) {
        memory.Request(xxh3::kStripes);
        const uint64_t rest = stripes * xxh3::kStripe + pair * sizeof(Word16);
        for (uint64_t i = rest; i < Smaller<uint64_t>(left, rest + sizeof(Word16)); ++i) {
          memory.template Store<uint8_t>(range.to + done + i,
                                         memory.template Load<uint8_t>(range.from + done + i));
        }
      }
    }
    memory.Request(xxh3::kStripes + 1);
    memory.template Store<Word16>(SumsAt(p, unit, pair), {sums.low, sums.high});
  }
}

template <typename Memory>
TANGRAM_DEVICE void HashSums(const Where& where, const HashParameters& p, Memory& memory) {
  HashOrCopy<false>(where, p, memory);
}
template <typename Memory>
TANGRAM_DEVICE void CopyHash(const Where& where, const HashParameters& p, Memory& memory) {
  HashOrCopy<true>(where, p, memory);
}

// 0 means "no hash".
template <typename Memory>
TANGRAM_DEVICE void StoreHash(Memory& memory, const HashRange& range, uint64_t hash) {
  memory.template Store<uint64_t>(range.hash, hash == 0 ? 1 : hash);
}

// Takes the sums of `blocks` into a pair's lanes. Loads are issued a batch ahead; otherwise each
// would stall.
template <typename Memory>
TANGRAM_DEVICE xxh3::Pair ChainOf(Memory& memory, const HashParameters& p, uint64_t unit,
                                  uint64_t blocks, uint32_t pair) {
  constexpr uint32_t kAhead = 8;
  xxh3::Pair lanes = xxh3::FirstOf(pair);
  Word16 next[kAhead];
  uint64_t b = 0;
  if (blocks >= kAhead) {
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i)
      next[i] = memory.template Load<Word16>(SumsAt(p, unit + i, pair));
  }
  for (; b + kAhead <= blocks; b += kAhead) {
    Word16 now[kAhead];
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) now[i] = next[i];
    if (b + 2 * kAhead <= blocks) {
      TANGRAM_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        next[i] = memory.template Load<Word16>(SumsAt(p, unit + b + kAhead + i, pair));
      }
    }
    TANGRAM_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      lanes = xxh3::Scrambled({lanes.low + now[i].low, lanes.high + now[i].high}, pair);
    }
  }
  for (; b < blocks; ++b) {
    const Word16 sums = memory.template Load<Word16>(SumsAt(p, unit + b, pair));
    lanes = xxh3::Scrambled({lanes.low + sums.low, lanes.high + sums.high}, pair);
  }
  return lanes;
}

template <typename Memory>
TANGRAM_DEVICE void HashChain(const Where& where, const HashParameters& p, Memory& memory) {
  const uint32_t pair = where.thread % xxh3::kPairs;
  const uint64_t step = where.threads / xxh3::kPairs;
  for (uint64_t r = where.block * step + where.thread / xxh3::kPairs; r < p.count;
       r += step * where.blocks) {
    memory.Round();
    const HashRange range = memory.template Read<HashRange>(p.ranges + r * sizeof(HashRange));
    const uint64_t address = range.to != 0 ? range.to : range.from;
    if (range.bytes <= xxh3::kShort) {
      if (pair != 0) continue;
      const uint64_t hash =
          xxh3::Short<Memory>(memory, address, static_cast<uint32_t>(range.bytes)).Hash();
      StoreHash(memory, range, hash);
      continue;
    }
    const uint64_t blocks = (range.bytes - 1) / xxh3::kBlock;
    xxh3::Pair lanes = ChainOf(memory, p, range.first, blocks, pair);
    // The sums of the last block are not scrambled. The last 64 bytes use a separate part of the
    // secret; some of them are taken twice.
    const Word16 last = memory.template Load<Word16>(SumsAt(p, range.first + blocks, pair));
    lanes = {lanes.low + last.low, lanes.high + last.high};
    const uint64_t end = address + range.bytes - xxh3::kStripe + pair * sizeof(Word16);
    xxh3::AddTo(&lanes, Load16(memory, end, WidthOf(end)), xxh3::Secret(121 + 16 * pair),
                xxh3::Secret(129 + 16 * pair));
    const uint64_t meeting = MeetingAt(p, r);
    memory.template Add<uint64_t>(meeting, xxh3::EndOf(lanes, pair));
    memory.Fence();
    if (memory.template Add<uint64_t>(meeting + 8, 1) != xxh3::kPairs - 1) continue;
    memory.Fence();
    const uint64_t sum = memory.template Add<uint64_t>(meeting, 0);
    const uint64_t hash = xxh3::Avalanche(range.bytes * xxh3::kPrime64_1 + sum);
    StoreHash(memory, range, hash);
  }
}

}  // namespace tangram::kernels
