// Parameters of the kernels: one struct each, passed by value as the kernel's only argument, and
// the lists that it names, in memory that the GPU reads. Addresses are the GPU's; sizes and strides
// are bytes.
#pragma once

#include <cstdint>

namespace tangram::kernels {

// `threads` is a multiple of 32.
struct Launch {
  uint32_t blocks = 0, threads = 0;
};
constexpr uint32_t kMostThreads = 512;  // threads per block that kernels are compiled for

// --- Hashes: XXH3-64 as agent/device/hash.h gives it (never 0) -----------------------------------

// Bytes to hash, and optionally to copy.
struct HashRange {
  uint64_t from = 0, bytes = 0;
  uint64_t to = 0;     // destination of copy_hash, does not overlap `from`; 0 for hash_sums
  uint64_t hash = 0;   // address of the resulting uint64_t, a multiple of 8
  uint64_t first = 0;  // blocks of 1,024 bytes of all ranges before (NumberRanges)
};

// `hash_sums` or `copy_hash`, then `hash_chain` with the same parameters, in this order on one
// stream. Any address and length is valid; multiples of 16 are fastest.
struct HashParameters {
  uint64_t ranges = 0, count = 0;  // HashRange [count]
  uint64_t units = 0;              // result of NumberRanges
  uint64_t scratch = 0;            // HashScratchBytes, at a multiple of 16; contents do not matter
};

// --- Copies of non-contiguous data ---------------------------------------------------------------

// `lines` lines of `bytes` each, to_pitch and from_pitch apart; source and destination do not
// overlap.
struct CopyStrip {
  uint64_t to = 0, to_pitch = 0;
  uint64_t from = 0, from_pitch = 0;
  uint64_t bytes = 0, lines = 0;
  uint64_t first = 0;  // tiles of all strips before (NumberStrips)
};

// `copy_strips`. Accesses have 16 bytes if addresses and pitches of a strip are multiples of 16,
// else 4 or 1; a line may have any length.
struct CopyStripsParameters {
  uint64_t strips = 0, count = 0;  // CopyStrip [count]
  uint64_t units = 0;              // result of NumberStrips
  // The first tile of the first block, less than `units`; the list is a ring. Ranks that copy from
  // each other concurrently begin with different peers.
  uint64_t start = 0;
};

// Rows of one size of one KV head of one block, in consecutive layers: `pages` pages. Each has
// `parts` parts (2 if V is at a fixed distance from K and has as many bytes; otherwise K and V are
// two moves). Of each part the first `tokens` positions move. Fewer than 2^32 bytes.
struct KvMove {
  uint64_t to = 0, to_page_stride = 0, to_part_stride = 0, to_token_stride = 0;
  uint64_t from = 0, from_page_stride = 0, from_part_stride = 0, from_token_stride = 0;
  uint64_t pages = 0, parts = 0, tokens = 0, row_bytes = 0;
  uint64_t first = 0;  // tiles of all moves before (NumberKvMoves)
};

// `kv_by_head`: the data that a rank fetches when heads move to other ranks.
struct KvByHeadParameters {
  uint64_t moves = 0, count = 0;  // KvMove [count]
  uint64_t units = 0;             // result of NumberKvMoves
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
  uint64_t width = 0, units = 0;  // set by NumberLatentMoves
};

// `gather_blocks`: block from_blocks[i] of a pool is copied to block to_blocks[i] of another;
// without a list (0) the number is i.
struct GatherBlocksParameters {
  uint64_t to = 0, to_pitch = 0, to_blocks = 0;        // uint32_t [count] or 0
  uint64_t from = 0, from_pitch = 0, from_blocks = 0;  // uint32_t [count] or 0
  uint64_t bytes = 0, count = 0;                       // bytes per block; number of blocks
};

// --- Numbers -------------------------------------------------------------------------------------

// `load_histogram`: adds to counts[e] how often e is among the ids. Negative ids are not counted;
// ids beyond the experts are counted in counts[experts].
struct LoadHistogramParameters {
  uint64_t ids = 0, count = 0;       // int32_t [count]
  uint64_t counts = 0, experts = 0;  // uint64_t [experts + 1]
};

// `partial_sums`: sums[i] += partials[k][i] for all k, as integers of unit 2^-40. If a number does
// not fit or a sum overflows, sums[i] is undefined, and `bad` becomes the minimum of i and its
// value.
struct PartialSumsParameters {
  uint64_t partials = 0, count = 0,
           pitch = 0;               // float [elements], `count` of them, `pitch` bytes apart
  uint64_t sums = 0, elements = 0;  // int64_t [elements]
  uint64_t bad = 0;                 // uint64_t; UINT64_MAX at first
};

// --- A decode step -------------------------------------------------------------------------------
// Plain and exact rather than fast, for tests of a GPU that computes while weights and KV move
// (tests/gpu): each result is computed by one thread, in one order. A row is the next token of a
// request. Numbers are fp32, weights bf16 [rows][columns]; matrices have no gaps unless noted.

// `fill_bf16`: pseudo-random weights in [-scale, scale), from a seed and their number. `rows` of
// them; the first is number `first`.
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

// `rope`: rotates each head of each row to its position, pairs (i, i + dim / 2), as Qwen3 does.
struct RopeParameters {
  uint64_t heads_of = 0, rows = 0, heads = 0, dim = 0;  // float [rows][heads][dim]
  uint64_t positions = 0, table = 0;  // uint32_t [rows]; float [position][dim / 2]{cos, sin}
};

// Pages of KV: for each row, KV head and block an address (0: none yet) of K [block_tokens][dim],
// then V. The table has `blocks` entries per row and head, and `kv_heads` times that per row.
struct PagesOf {
  uint64_t table = 0, kv_heads = 0, blocks = 0;
  uint64_t block_tokens = 0, dim = 0;
  uint64_t positions = 0;  // uint32_t [rows]: of the row's token
};

// `kv_write`: writes K and V of each row's token into its page.
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

// `route`: the `top` experts of each row by descending logit, ties to the lowest id. Their weights
// are a softmax over them.
struct Choice {
  uint32_t expert = 0;
  float weight = 0;
};
struct RouteParameters {
  uint64_t to = 0, logits = 0;  // Choice [rows][top]; float [rows][experts]
  uint64_t rows = 0, experts = 0, top = 0;
};

// `expert_up`, then `expert_down`: computes the experts that this rank has, for all rows. An expert
// is a row-major slab: gate [inner][hidden], up likewise, down [hidden][inner]. `places` has its
// address, 0 if it is not here.
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

// `pick_token`: the next token of each row is the one in the history if known, else the one with
// the highest logit, which is added to the history. Then the row is at the next position.
struct PickParameters {
  uint64_t logits = 0, rows = 0, vocabulary = 0;  // float [rows][vocabulary]
  uint64_t tokens = 0, positions = 0;             // uint32_t [rows]
  uint64_t history = 0, history_pitch = 0;        // uint32_t [rows][positions]
  uint64_t known = 0;                             // uint32_t [rows]: tokens of the history
};

}  // namespace tangram::kernels
