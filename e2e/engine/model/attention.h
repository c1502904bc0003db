// The two kinds of attention: K and V by head, and latents. Both use paged KV, and their sums are
// independent of the split of the heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

// Positions of one attention chunk; chunks start at absolute multiples of it.
constexpr uint32_t kAttentionChunk = 64;

// Format of a rank's KV region: page i starts at base + i * PageBytes(). A page has K of all its
// positions, then V of them; or latents.
struct KvRegion {
  void* base = nullptr;
  uint32_t block_tokens = 0;
  KvRow row;

  size_t PageBytes() const { return size_t{block_tokens} * row.floats() * sizeof(float); }
  float* K(uint32_t page, uint32_t slot) const { return Page(page) + size_t{slot} * row.key; }
  float* V(uint32_t page, uint32_t slot) const {
    if (row.latent) return K(page, slot);
    return Page(page) + size_t{block_tokens} * row.key + size_t{slot} * row.value;
  }

 private:
  float* Page(uint32_t page) const {
    return static_cast<float*>(base) + page * (size_t{block_tokens} * row.floats());
  }
};

// One token of a request.
struct AttentionRow {
  uint32_t position = 0;  // absolute
  // pages[i][b]: page of block b of the request, for KV head KvHeadsOf(heads).first + i in this
  // layer. Must reach block position / block_tokens.
  std::span<const uint32_t* const> pages;
  // False if the pages already hold the row's KV (a second range of query heads).
  bool write_kv = true;
};

// Query heads [head_begin, head_end) of rows n [m, H] (after the norm): each head's rows of o_proj
// are added to acc [m, H].
struct AttentionCall {
  const Config& config;
  std::span<const float> angles;  // RopeTable
  uint32_t head_begin = 0, head_end = 0;
  std::span<const float> n;
  std::span<const AttentionRow> rows;
  const KvRegion& kv;
  std::span<int64_t> acc;

  const float* AnglesOf(uint32_t position) const {
    return &angles[size_t{position} * config.rope.width];
  }
};

// Grouped-query attention with norms of queries and keys (Qwen3).
struct GroupedHeads {
  std::vector<float> q_norm, k_norm;  // [head_dim]
  Matrix q, k, v;                     // [heads * head_dim, H]
  Matrix o;                           // [H, query_heads * head_dim]
  Status Run(const AttentionCall& call) const;
};

// Multi-head latent attention in the absorbed form, which never expands a latent: queries go
// through the keys' half of kv_b, attend to the stored latents, and their result goes through the
// values' half (DeepSeek-V2, arXiv:2405.04434, 2.1.2).
struct LatentHeads {
  Matrix q_a;                    // [q_rank, H], if queries have a low rank
  std::vector<float> q_a_norm;   // [q_rank]
  Matrix q;                      // [query_heads * (nope + rope), q_rank or H]
  Matrix kv_a;                   // [kv_rank + rope, H]
  std::vector<float> kv_a_norm;  // [kv_rank]
  Matrix kv_b;                   // [query_heads * (nope + value), kv_rank]
  Matrix o;                      // [H, query_heads * value]
  Status Run(const AttentionCall& call) const;
};

// Attention of one query head of one token over the keys and values up to its position. q
// [row.key], out [row.value]; `pages` of its KV head.
void AttendHead(const float* q, float scale, const KvRegion& kv, const uint32_t* pages,
                uint32_t position, float* out);

}  // namespace tangram::model
