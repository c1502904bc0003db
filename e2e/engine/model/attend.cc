#include <algorithm>
#include <cstring>

#include "e2e/engine/model/attention.h"
#include "e2e/engine/model/kernels.h"

namespace tangram::model {

// Each chunk has its own maximum, weights and weighted sum, and chunks are joined in ascending
// order (online softmax: Milakov and Gimelshein, 2018). So a token's result depends only on the
// keys up to its position, not on how they were batched.
void AttendHead(const float* q, float scale, const KvRegion& kv, const uint32_t* pages,
                uint32_t position, float* out) {
  const uint32_t width = kv.row.value;
  thread_local std::vector<float> sum;
  sum.assign(width, 0);
  std::memset(out, 0, width * sizeof *out);
  float highest = 0, norm = 0;
  for (uint32_t begin = 0; begin <= position; begin += kAttentionChunk) {
    const uint32_t count = std::min(kAttentionChunk, position + 1 - begin);
    float score[kAttentionChunk];
    float chunk_highest = -__builtin_inff();
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t p = begin + i;
      score[i] = Dot(q, kv.K(pages[p / kv.block_tokens], p % kv.block_tokens), kv.row.key) * scale;
      chunk_highest = std::max(chunk_highest, score[i]);
    }
    float chunk_norm = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t p = begin + i;
      const float weight = Exp(score[i] - chunk_highest);
      chunk_norm += weight;
      Axpy(weight, kv.V(pages[p / kv.block_tokens], p % kv.block_tokens), sum.data(), width);
    }
    if (begin == 0) {
      highest = chunk_highest;
      norm = chunk_norm;
      std::memcpy(out, sum.data(), width * sizeof *out);
      continue;
    }
    const float joined = std::max(highest, chunk_highest);
    const float old_scale = Exp(highest - joined), chunk_scale = Exp(chunk_highest - joined);
    norm = norm * old_scale + chunk_norm * chunk_scale;
    Scale(old_scale, out, width);
    Axpy(chunk_scale, sum.data(), out, width);
    highest = joined;
  }
  for (uint32_t i = 0; i < width; ++i) out[i] /= norm;
}

}  // namespace tangram::model
