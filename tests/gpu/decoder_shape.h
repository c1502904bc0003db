// The layers that a GPU computes in the act `tokens`, and who of its virtual ranks computes what.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/gpu/experts.h"

namespace tangram::gpu {

// Of Qwen3-MoE. KV is fp32; `rows` requests get a token each at every step.
struct DecoderShape {
  uint64_t layers = 0, hidden = 0, query_heads = 0, kv_heads = 0, dim = 0;
  uint64_t experts = 0, top = 0, inner = 0, vocabulary = 0;
  uint64_t rows = 0, block_tokens = 0, blocks = 0;  // of KV, of each request

  uint64_t positions() const { return blocks * block_tokens; }
  uint64_t page_bytes() const { return 2 * block_tokens * dim * 4; }
  uint64_t expert_bytes() const { return 3 * inner * hidden * 2; }
  // A granule is what one of eight ranks has.
  ExpertShape experts_shape() const { return {hidden, inner, 8, experts}; }
};

// A rank's part of the attention of each layer: these query heads, and so these KV heads, of these
// requests; and which of the partial sums of its requests it gives.
struct RankPart {
  uint64_t row = 0, rows = 0, head = 0, heads = 0, kv_head = 0, kv_heads = 0, part = 0;
};

// A layout as it is computed. Experts are whole, or a rank has `inner` rows of each.
struct Mode {
  std::vector<RankPart> of;  // [ranks]
  uint64_t parts = 0;        // of attention
  uint64_t inner = 0;
  bool sliced = false;

  uint64_t ranks() const { return of.size(); }
};

// Each rank has requests of its own, and whole experts.
Mode ExpertMode(const DecoderShape& shape, uint64_t ranks);
// Heads and experts are sliced; where there are more ranks than KV heads, in groups that have
// requests of their own.
Mode TensorMode(const DecoderShape& shape, uint64_t ranks);
// Of an ExpertMode: the last rank is dead, and the one before has its requests.
Mode WithoutTheLast(Mode mode);

}  // namespace tangram::gpu
