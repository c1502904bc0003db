#include "tests/gpu/decoder_shape.h"

#include <algorithm>

namespace tangram::gpu {

Mode ExpertMode(const DecoderShape& shape, uint64_t ranks) {
  Mode out{{}, 1, shape.inner, false};
  const uint64_t rows = shape.rows / ranks;
  for (uint64_t r = 0; r < ranks; ++r) {
    out.of.push_back({r * rows, rows, 0, shape.query_heads, 0, shape.kv_heads, 0});
  }
  return out;
}

Mode TensorMode(const DecoderShape& shape, uint64_t ranks) {
  const uint64_t group = std::min(ranks, shape.kv_heads), rows = shape.rows / (ranks / group);
  const uint64_t heads = shape.query_heads / group, kv_heads = shape.kv_heads / group;
  Mode out{{}, group, shape.inner / ranks, true};
  for (uint64_t r = 0; r < ranks; ++r) {
    const uint64_t part = r % group;
    out.of.push_back(
        {r / group * rows, rows, part * heads, heads, part * kv_heads, kv_heads, part});
  }
  return out;
}

Mode WithoutTheLast(Mode mode) {
  RankPart& dead = mode.of.back();
  mode.of[mode.ranks() - 2].rows += dead.rows;
  dead.rows = 0;
  return mode;
}

}  // namespace tangram::gpu
