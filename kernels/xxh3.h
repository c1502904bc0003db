// The arithmetic of XXH3-64 with seed 0 and the default secret, from its specification
// (doc/xxhash_spec.md of github.com/Cyan4973/xxHash), written so that threads can share one hash.
//
// More than 240 bytes are processed in blocks of 1,024. Each of 8 lanes of 64 bits adds up 16
// numbers, one per stripe of 64 bytes, and is scrambled after the block. The addends depend only on
// the bytes and their place in the block. So the sums of all blocks can be computed concurrently,
// by any number of threads; only the scrambles, one multiplication per block, are serial. Two
// adjacent lanes (a pair: 16 bytes of a stripe) depend on no others.
#pragma once

#include "kernels/memory.h"

namespace tangram::kernels::xxh3 {

constexpr uint32_t kShort = 240;  // bytes; other rules apply up to here
constexpr uint32_t kStripe = 64, kStripes = 16, kBlock = kStripe * kStripes;
constexpr uint32_t kPairs = 4;

constexpr uint64_t kPrime32_1 = 0x9e3779b1, kPrime32_2 = 0x85ebca77, kPrime32_3 = 0xc2b2ae3d;
constexpr uint64_t kPrime64_1 = 0x9e3779b185ebca87, kPrime64_2 = 0xc2b2ae3d27d4eb4f,
                   kPrime64_3 = 0x165667b19e3779f9, kPrime64_4 = 0x85ebca77c2b2ae63,
                   kPrime64_5 = 0x27d4eb2f165667c5;
constexpr uint64_t kMix1 = 0x165667919e3779f9, kMix2 = 0x9fb21c651e98df25;

TANGRAM_TABLE uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// 8 bytes of the secret, from any offset.
TANGRAM_DEVICE uint64_t Secret(uint32_t at) {
  const uint32_t word = at / 8, bits = at % 8 * 8;
  return bits == 0 ? kSecret[word] : kSecret[word] >> bits | kSecret[word + 1] << (64 - bits);
}

TANGRAM_DEVICE uint64_t Swap4(uint64_t x) {
  x = (x & 0xff00ff) << 8 | (x >> 8 & 0xff00ff);
  return (x & 0xffff) << 16 | x >> 16;
}
TANGRAM_DEVICE uint64_t Swap8(uint64_t x) { return Swap4(x & 0xffffffff) << 32 | Swap4(x >> 32); }
TANGRAM_DEVICE uint64_t RotateLeft(uint64_t x, uint32_t bits) {
  return x << bits | x >> (64 - bits);
}

// Both halves of the 128-bit product, xor-ed.
TANGRAM_DEVICE uint64_t Fold(uint64_t a, uint64_t b) {
#ifdef __CUDACC__
  return a * b ^ __umul64hi(a, b);
#else
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
#endif
}

// Final mixes: the first for most lengths; the second, that of XXH64, for the shortest.
TANGRAM_DEVICE uint64_t Avalanche(uint64_t h) {
  h ^= h >> 37;
  h *= kMix1;
  return h ^ h >> 32;
}
TANGRAM_DEVICE uint64_t Avalanche64(uint64_t h) {
  h ^= h >> 33;
  h *= kPrime64_2;
  h ^= h >> 29;
  h *= kPrime64_3;
  return h ^ h >> 32;
}

// Two lanes.
struct Pair {
  uint64_t low = 0, high = 0;
};

TANGRAM_DEVICE Pair FirstOf(uint32_t pair) {
  switch (pair) {
    case 0:
      return {kPrime32_3, kPrime64_1};
    case 1:
      return {kPrime64_2, kPrime64_3};
    case 2:
      return {kPrime64_4, kPrime32_2};
    default:
      return {kPrime64_5, kPrime32_1};
  }
}

TANGRAM_DEVICE uint64_t Product(uint64_t x) { return (x & 0xffffffff) * (x >> 32); }

// Adds 16 bytes of a stripe: each lane gets the product of its own 8 bytes and the plain 8 bytes of
// its neighbour.
TANGRAM_DEVICE void AddTo(Pair* sums, const Word16& data, uint64_t low_key, uint64_t high_key) {
  sums->low += data.high + Product(data.low ^ low_key);
  sums->high += data.low + Product(data.high ^ high_key);
}

TANGRAM_DEVICE uint64_t Scrambled(uint64_t lane, uint64_t key) {
  return (lane ^ lane >> 47 ^ key) * kPrime32_1;
}
TANGRAM_DEVICE Pair Scrambled(const Pair& lanes, uint32_t pair) {
  return {Scrambled(lanes.low, kSecret[16 + 2 * pair]),
          Scrambled(lanes.high, kSecret[17 + 2 * pair])};
}

// A pair's share of the result, which is Avalanche(length * kPrime64_1 + the shares of all pairs).
TANGRAM_DEVICE uint64_t EndOf(const Pair& lanes, uint32_t pair) {
  return Fold(lanes.low ^ Secret(11 + 16 * pair), lanes.high ^ Secret(19 + 16 * pair));
}

// The hash of at most kShort bytes.
template <typename Memory>
class Short {
 public:
  TANGRAM_DEVICE Short(Memory& memory, uint64_t address, uint32_t bytes)
      : memory_(memory), address_(address), bytes_(bytes) {}

  TANGRAM_DEVICE uint64_t Hash() {
    if (bytes_ == 0) return Avalanche64(kSecret[7] ^ kSecret[8]);
    if (bytes_ <= 3) return UpTo3();
    if (bytes_ <= 8) return UpTo8();
    if (bytes_ <= 16) return UpTo16();
    return bytes_ <= 128 ? UpTo128() : UpTo240();
  }

 private:
  TANGRAM_DEVICE uint64_t Get(uint32_t at, uint32_t bytes) {
    uint64_t out = 0;
    for (uint32_t i = 0; i < bytes; ++i) {
      const uint64_t byte = memory_.template Load<uint8_t>(address_ + at + i);
      out |= byte << (8 * i);
    }
    return out;
  }
  // Mixes 16 bytes with 16 bytes of the secret.
  TANGRAM_DEVICE uint64_t Mix(uint32_t at, uint32_t secret) {
    return Fold(Get(at, 8) ^ Secret(secret), Get(at + 8, 8) ^ Secret(secret + 8));
  }

  TANGRAM_DEVICE uint64_t UpTo3() {
    const uint64_t word = Get(0, 1) << 16 | Get(bytes_ / 2, 1) << 24 | Get(bytes_ - 1, 1) |
                          static_cast<uint64_t>(bytes_) << 8;
    return Avalanche64(word ^ ((kSecret[0] ^ kSecret[0] >> 32) & 0xffffffff));
  }
  TANGRAM_DEVICE uint64_t UpTo8() {
    uint64_t h = (Get(bytes_ - 4, 4) | Get(0, 4) << 32) ^ kSecret[1] ^ kSecret[2];
    h ^= RotateLeft(h, 49) ^ RotateLeft(h, 24);
    h *= kMix2;
    h ^= (h >> 35) + bytes_;
    h *= kMix2;
    return h ^ h >> 28;
  }
  TANGRAM_DEVICE uint64_t UpTo16() {
    const uint64_t low = Get(0, 8) ^ kSecret[3] ^ kSecret[4],
                   high = Get(bytes_ - 8, 8) ^ kSecret[5] ^ kSecret[6];
    return Avalanche(bytes_ + Swap8(low) + high + Fold(low, high));
  }
  // From both ends inwards, 16 bytes each.
  TANGRAM_DEVICE uint64_t UpTo128() {
    uint64_t sum = bytes_ * kPrime64_1;
    for (uint32_t step = 0; step <= (bytes_ - 1) / 32; ++step) {
      sum += Mix(16 * step, 32 * step) + Mix(bytes_ - 16 * (step + 1), 32 * step + 16);
    }
    return Avalanche(sum);
  }
  TANGRAM_DEVICE uint64_t UpTo240() {
    uint64_t sum = bytes_ * kPrime64_1;
    for (uint32_t at = 0; at < 128; at += 16) sum += Mix(at, at);
    sum = Avalanche(sum);
    for (uint32_t at = 128; at + 16 <= bytes_; at += 16) sum += Mix(at, at - 128 + 3);
    return Avalanche(sum + Mix(bytes_ - 16, 136 - 17));
  }

  Memory& memory_;
  uint64_t address_;
  uint32_t bytes_;
};

}  // namespace tangram::kernels::xxh3
