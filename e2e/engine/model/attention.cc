// Grouped-query attention over paged KV, by absolute chunks of kAttentionChunk positions.
#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "e2e/engine/model/kernels.h"
#include "e2e/engine/model/model.h"

namespace tangram::model {
namespace {

// Rotates pairs (i, i + half), as transformers does (rotate_half). table: {cos, sin} [half].
void Rotate(const float* table, uint32_t half, float* x) {
  for (uint32_t i = 0; i < half; ++i) {
    const float c = table[2 * i], s = table[2 * i + 1];
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

// One query head of one token. Each chunk has its own maximum, weights and weighted sum, and
// chunks are joined in ascending order (online softmax: Milakov and Gimelshein, 2018), so
// a token's result depends on the keys up to its position only, however these came.
void AttendHead(const float* q, float scale, const KvRegion& kv, const uint32_t* pages,
                uint32_t position, float* out) {
  const uint32_t dim = kv.head_dim;
  thread_local std::vector<float> sum;
  sum.assign(dim, 0);
  std::memset(out, 0, dim * sizeof *out);
  float highest = 0, norm = 0;
  for (uint32_t begin = 0; begin <= position; begin += kAttentionChunk) {
    const uint32_t count = std::min(kAttentionChunk, position + 1 - begin);
    float score[kAttentionChunk];
    float chunk_highest = -__builtin_inff();
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t p = begin + i;
      score[i] = Dot(q, kv.K(pages[p / kv.block_tokens], p % kv.block_tokens), dim) * scale;
      chunk_highest = std::max(chunk_highest, score[i]);
    }
    float chunk_norm = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t p = begin + i;
      const float weight = Exp(score[i] - chunk_highest);
      chunk_norm += weight;
      Axpy(weight, kv.V(pages[p / kv.block_tokens], p % kv.block_tokens), sum.data(), dim);
    }
    if (begin == 0) {
      highest = chunk_highest;
      norm = chunk_norm;
      std::memcpy(out, sum.data(), dim * sizeof *out);
      continue;
    }
    const float joined = std::max(highest, chunk_highest);
    const float old_scale = Exp(highest - joined), chunk_scale = Exp(chunk_highest - joined);
    norm = norm * old_scale + chunk_norm * chunk_scale;
    Scale(old_scale, out, dim);
    Axpy(chunk_scale, sum.data(), out, dim);
    highest = joined;
  }
  for (uint32_t i = 0; i < dim; ++i) out[i] /= norm;
}

}  // namespace

Status Model::AttentionPartial(uint32_t layer, uint32_t head_begin, uint32_t head_end,
                               std::span<const float> n, std::span<const AttentionRow> rows,
                               const KvRegion& kv, std::span<int64_t> acc) const {
  const Layer& l = layers_[layer];
  const uint32_t h = config_.hidden, dim = config_.head_dim, half = dim / 2;
  const auto [kv_begin, kv_end] = config_.KvHeadsOf(head_begin, head_end);
  const uint32_t heads = head_end - head_begin, kv_heads = kv_end - kv_begin;
  const size_t m = rows.size();
  if (heads == 0 || m == 0) return OkStatus();
  for (const AttentionRow& row : rows) {
    if (row.position >= config_.max_positions || row.pages.size() != kv_heads) {
      return Status(
          Code::kInvalid,
          fmt::format("layer {}: row at position {} (limit {}) with pages of {} KV heads, "
                      "query heads [{}, {}) read {}",
                      layer, row.position, config_.max_positions, row.pages.size(), head_begin,
                      head_end, kv_heads));
    }
  }
  thread_local std::vector<float> q, k, v, mixed, partial;
  q.resize(m * heads * dim);
  k.resize(m * kv_heads * dim);
  v.resize(m * kv_heads * dim);
  mixed.resize(m * heads * dim);
  partial.resize(m * h);
  MatMul(l.q.Rows(head_begin * dim, heads * dim), n.data(), h, m, q.data(), heads * dim);
  MatMul(l.k.Rows(kv_begin * dim, kv_heads * dim), n.data(), h, m, k.data(), kv_heads * dim);
  MatMul(l.v.Rows(kv_begin * dim, kv_heads * dim), n.data(), h, m, v.data(), kv_heads * dim);

  for (size_t i = 0; i < m; ++i) {
    if (!rows[i].write_kv) continue;
    const uint32_t block = rows[i].position / kv.block_tokens;
    const uint32_t slot = rows[i].position % kv.block_tokens;
    for (uint32_t g = 0; g < kv_heads; ++g) {
      float* key = &k[(i * kv_heads + g) * dim];
      RmsNorm(key, l.k_norm.data(), config_.rms_eps, dim, key);
      Rotate(&rope_[size_t{rows[i].position} * dim], half, key);
      const uint32_t page = rows[i].pages[g][block];
      std::memcpy(kv.K(page, slot), key, dim * sizeof(float));
      std::memcpy(kv.V(page, slot), &v[(i * kv_heads + g) * dim], dim * sizeof(float));
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (size_t i = 0; i < m; ++i) {
    for (uint32_t head = 0; head < heads; ++head) {
      float* query = &q[(i * heads + head) * dim];
      RmsNorm(query, l.q_norm.data(), config_.rms_eps, dim, query);
      Rotate(&rope_[size_t{rows[i].position} * dim], half, query);
      const uint32_t g = config_.KvHeadOf(head_begin + head) - kv_begin;
      AttendHead(query, scale, kv, rows[i].pages[g], rows[i].position,
                 &mixed[(i * heads + head) * dim]);
    }
  }
  for (uint32_t head = 0; head < heads; ++head) {
    MatMul(l.o.Columns((head_begin + head) * dim, dim), &mixed[head * dim], heads * dim, m,
           partial.data(), h);
    TANGRAM_RETURN_IF_ERROR(AccumulateFixed(partial, acc, "attention output"));
  }
  return OkStatus();
}

}  // namespace tangram::model
