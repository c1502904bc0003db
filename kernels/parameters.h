// What the kernels are told: one struct each, passed by value as the kernel's only argument, and
// the lists that it names, which lie in memory that the GPU reads. Addresses are the GPU's, sizes
// and strides bytes.
#pragma once

#include <cstdint>

namespace tangram::kernels {

// Threads are a multiple of 32.
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
// else 4 or 1; a line may have any length.
struct CopyStripsParameters {
  uint64_t strips = 0, count = 0;  // CopyStrip [count]
  uint64_t units = 0;              // what NumberStrips returned
  // The tile that the first block begins with, less than `units`; the list is a ring. Ranks that
  // copy from each other all at once begin with different peers.
  uint64_t start = 0;
};

// Rows of one size of one KV head of one block, in a run of layers: `pages` pages, of each its
// `parts` (K and V, where V lies so far behind K and has as many bytes; else they are two moves),
// of each the first `tokens` positions. Fewer than 2^32 bytes.
struct KvMove {
  uint64_t to = 0, to_page_stride = 0, to_part_stride = 0, to_token_stride = 0;
  uint64_t from = 0, from_page_stride = 0, from_part_stride = 0, from_token_stride = 0;
  uint64_t pages = 0, parts = 0, tokens = 0, row_bytes = 0;
  uint64_t first = 0;  // tiles of all moves before (NumberKvMoves)
};

// `kv_by_head`: what a rank pulls when heads go to other ranks.
struct KvByHeadParameters {
  uint64_t moves = 0, count = 0;  // KvMove [count]
  uint64_t units = 0;             // what NumberKvMoves returned
};

// The first `tokens` latents of a block.
struct LatentMove {
  uint64_t from = 0, tokens = 0;
  uint64_t first = 0;  // tiles of all moves before (NumberLatentMoves)
};

// `kv_latent`: a latent has no heads, so each rank of a group needs all of them. It is read once
// and written to every target.
struct KvLatentParameters {
  uint64_t moves = 0, count = 0;              // LatentMove [count]
  uint64_t targets = 0, targets_of_each = 0;  // addresses, uint64_t [count][targets_of_each]
  uint64_t from_token_stride = 0, to_token_stride = 0, row_bytes = 0;
  uint64_t width = 0, units = 0;  // NumberLatentMoves sets them
};

// `gather_blocks`: block i is number from_blocks[i] of a pool, and goes to number to_blocks[i] of
// another; without a list (0) to i itself.
struct GatherBlocksParameters {
  uint64_t to = 0, to_pitch = 0, to_blocks = 0;        // uint32_t [count] or 0
  uint64_t from = 0, from_pitch = 0, from_blocks = 0;  // uint32_t [count] or 0
  uint64_t bytes = 0, count = 0;                       // of a block; blocks
};

// --- Numbers -------------------------------------------------------------------------------------

// `load_histogram`: adds to counts[e] how often e is among the ids. One that is negative is
// nobody's and not counted, one that is no expert is counted in counts[experts].
struct LoadHistogramParameters {
  uint64_t ids = 0, count = 0;       // int32_t [count]
  uint64_t counts = 0, experts = 0;  // uint64_t [experts + 1]
};

// `partial_sums`: sums[i] += partials[k][i] for all k, as integers of unit 2^-40. Where a number
// does not fit or a sum goes around, sums[i] means nothing, and the least such i goes to `bad`, if
// it is less than what is there.
struct PartialSumsParameters {
  uint64_t partials = 0, count = 0,
           pitch = 0;               // float [elements], `count` of them, `pitch` bytes apart
  uint64_t sums = 0, elements = 0;  // int64_t [elements]
  uint64_t bad = 0;                 // uint64_t; UINT64_MAX before
};

}  // namespace tangram::kernels
