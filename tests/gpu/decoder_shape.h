// The layers that a GPU computes in the act `tokens`, and the virtual ranks' parts of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/gpu/experts.h"

namespace tangram::gpu {

// A shape of Qwen3-MoE. KV is fp32; each step computes a token for each of `rows` requests.
struct DecoderShape {
  uint64_t layers = 0, hidden = 0, query_heads = 0, kv_heads = 0, dim = 0;
  uint64_t experts = 0, top = 0, inner = 0, vocabulary = 0;
  uint64_t rows = 0, block_tokens = 0, blocks = 0;  // of KV, of each request

  uint64_t positions() const { return blocks * block_tokens; }
  uint64_t page_bytes() const { return 2 * block_tokens * dim * 4; }
  uint64_t expert_bytes() const { return 3 * inner * hidden * 2; }
  // A granule is one of eight ranks' part.
  ExpertShape experts_shape() const { return {hidden, inner, 8, experts}; }
};

// A rank's part of each layer's attention: these query heads, and so these KV heads, of these
// requests; and the number of its partial sum of its requests.
struct RankPart {
  uint64_t row = 0, rows = 0, head = 0, heads = 0, kv_head = 0, kv_heads = 0, part = 0;
};

// A layout. Experts are whole, or a rank has `inner` rows of each.
struct Mode {
  std::vector<RankPart> of;  // [ranks]
  uint64_t parts = 0;        // number of attention's partial sums
  uint64_t inner = 0;
  bool sliced = false;

  uint64_t ranks() const { return of.size(); }
};

// Each rank has its own requests and whole experts.
Mode ExpertMode(const DecoderShape& shape, uint64_t ranks);
// Heads and experts are sliced; more ranks than KV heads form groups with separate requests.
Mode TensorMode(const DecoderShape& shape, uint64_t ranks);
// An ExpertMode in which the last rank is dead and the previous one has its requests.
Mode WithoutTheLast(Mode mode);

}  // namespace tangram::gpu
