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

// --- A decode step -------------------------------------------------------------------------------
// Plain and exact rather than fast, for who wants to see a GPU compute with weights and KV that
// move (tests/gpu): each result is computed by one thread, in one order. A row is the next token of
// a request; numbers are fp32, weights bf16 [rows][columns], matrices without gaps unless said.

// `fill_bf16`: weights that a seed and their number give, in [-scale, scale). `rows` of them; the
// first is number `first`.
struct FillParameters {
  uint64_t to = 0, rows = 0, first = 0, seed = 0;
  float scale = 0;
};

// `embed`: row r becomes row tokens[r] of the table.
struct EmbedParameters {
  uint64_t to = 0, rows = 0, columns = 0;  // float [rows][columns]
  uint64_t tokens = 0, table = 0;          // uint32_t [rows]; bf16 [vocabulary][columns]
};

// `rms_norm`: to = from / sqrt(mean of squares + epsilon), row by row; `to` may be `from`.
struct RmsNormParameters {
  uint64_t to = 0, from = 0, rows = 0, columns = 0;
  float epsilon = 0;
};

// `matvec`: to[r][o] = weights[o] . from[r].
struct MatvecParameters {
  uint64_t to = 0, to_pitch = 0;            // float [rows][outputs]
  uint64_t from = 0, from_pitch = 0;        // float [rows][columns]
  uint64_t weights = 0, weights_pitch = 0;  // bf16 [outputs][columns]
  uint64_t rows = 0, outputs = 0, columns = 0;
};

// `rope`: turns each head of each row to its position, pairs (i, i + dim / 2), as Qwen3 does.
struct RopeParameters {
  uint64_t heads_of = 0, rows = 0, heads = 0, dim = 0;  // float [rows][heads][dim]
  uint64_t positions = 0, table = 0;  // uint32_t [rows]; float [position][dim / 2]{cos, sin}
};

// Pages of KV: for each row, KV head and block an address (0: none yet) of K [block_tokens][dim],
// then V. Those of a row and head are `blocks` apart, and of a row `kv_heads` times that.
struct PagesOf {
  uint64_t table = 0, kv_heads = 0, blocks = 0;
  uint64_t block_tokens = 0, dim = 0;
  uint64_t positions = 0;  // uint32_t [rows]: of the row's token
};

// `kv_write`: puts K and V of each row's token into its page.
struct KvWriteParameters {
  PagesOf pages;
  uint64_t k = 0, v = 0, rows = 0;  // float [rows][kv_heads][dim]
};

// `attend_scores`, then `attend_mix`: attention of each row and query head over the positions up to
// the row's. Query head h reads KV head h / heads_per_kv of the pages.
struct AttendParameters {
  PagesOf pages;
  uint64_t q = 0, rows = 0, heads = 0, heads_per_kv = 0;  // float [rows][heads][dim]
  uint64_t scores = 0, most_positions = 0;                // float [rows][heads][most_positions]
  uint64_t to = 0, to_pitch = 0;                          // float [rows][heads][dim]
  float scale = 0;
};

// `route`: the `top` experts of each row by falling logit, ties to the lowest, and their weights,
// which are a softmax over them.
struct Choice {
  uint32_t expert = 0;
  float weight = 0;
};
struct RouteParameters {
  uint64_t to = 0, logits = 0;  // Choice [rows][top]; float [rows][experts]
  uint64_t rows = 0, experts = 0, top = 0;
};

// `expert_up`, then `expert_down`: of the experts that this rank has, for all rows. An expert is a
// slab in order of rows: gate [inner][hidden], up likewise, down [hidden][inner]; `places` has its
// address, 0 where it is not here.
struct ExpertParameters {
  uint64_t choices = 0, rows = 0, top = 0;  // Choice [rows][top]
  uint64_t places = 0;                      // uint64_t [experts]
  uint64_t hidden = 0, inner = 0;
  uint64_t x = 0;     // float [rows][hidden]
  uint64_t acts = 0;  // float [rows][top][inner], between the two
  uint64_t to = 0;    // float [rows][hidden]: weighted sums
};

// `add_parts`: x += parts[0] + parts[1] + ..., in this order.
struct AddPartsParameters {
  uint64_t x = 0, rows = 0;  // float [rows]: all elements
  uint64_t parts = 0, count = 0, pitch = 0;
};

// `pick_token`: the next token of each row is what the history has, where it is known already, else
// the one with the highest logit, which the history gets. Then the row is at the next position.
struct PickParameters {
  uint64_t logits = 0, rows = 0, vocabulary = 0;  // float [rows][vocabulary]
  uint64_t tokens = 0, positions = 0;             // uint32_t [rows]
  uint64_t history = 0, history_pitch = 0;        // uint32_t [rows][positions]
  uint64_t known = 0;                             // uint32_t [rows]: tokens of the history
};

}  // namespace tangram::kernels
