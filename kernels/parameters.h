// What the kernels are told: one struct each, passed by value as the kernel's only argument, and
// the lists that it names, which lie in memory that the GPU reads. Addresses are the GPU's, sizes
// and strides bytes.
#pragma once

#include <cstdint>

namespace tangram::kernels {

struct Launch {
  uint32_t blocks = 0, threads = 0;
};
constexpr uint32_t kMostThreads = 512;  // of a block that a kernel was compiled for

// --- Hashes: XXH3-64 as agent/device/hash.h gives it (never 0) -----------------------------------

// Bytes that are hashed, and on the way copied.
struct HashRange {
  uint64_t from = 0, bytes = 0;
  uint64_t to = 0;     // where copy_hash writes them, apart from `from`; 0 for hash_sums
  uint64_t hash = 0;   // where the uint64_t goes, at a multiple of 8
  uint64_t first = 0;  // blocks of 1,024 bytes of all ranges before (NumberRanges)
};

// `hash_sums` or `copy_hash`, then `hash_chain` with the same parameters, in this order on one
// stream. Any address and length will do; multiples of 16 are fastest.
struct HashParameters {
  uint64_t ranges = 0, count = 0;  // HashRange [count]
  uint64_t units = 0;              // what NumberRanges returned
  uint64_t scratch = 0;            // HashScratchBytes, at a multiple of 16; contents do not matter
};

// --- Copies of what is no range ------------------------------------------------------------------

// `lines` of `bytes` each, to_pitch and from_pitch apart; the two sides do not overlap.
struct CopyStrip {
  uint64_t to = 0, to_pitch = 0;
  uint64_t from = 0, from_pitch = 0;
  uint64_t bytes = 0, lines = 0;
  uint64_t first = 0;  // tiles of all strips before (NumberStrips)
};

// `copy_strips`. Accesses have 16 bytes where addresses and pitches of a strip are multiples of it,
// else as many as they are multiples of; a line may have any length.
struct CopyStripsParameters {
  uint64_t strips = 0, count = 0;  // CopyStrip [count]
  uint64_t units = 0;              // what NumberStrips returned
  // The tile that the first block begins with; the list is a ring. Ranks that copy from each other
  // all at once begin with different peers.
  uint64_t start = 0;
};

}  // namespace tangram::kernels
