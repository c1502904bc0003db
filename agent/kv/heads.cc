#include <algorithm>

#include "agent/kv/plan.h"

namespace tangram::kv {

std::pair<uint32_t, uint32_t> HeldKvHeads(const Shape& shape, const Group& group, size_t position) {
  const uint32_t begin = group.query_head_bounds[position];
  const uint32_t end = group.query_head_bounds[position + 1];
  if (begin == end) return {0, 0};
  const uint32_t queries_per_kv = shape.query_heads / shape.kv_heads;
  return {begin / queries_per_kv, (end - 1) / queries_per_kv + 1};
}

std::vector<Range> MoveRanges(const Shape& shape, uint32_t tokens) {
  if (tokens == 0) return {};
  const uint32_t half_token = shape.head_token_bytes / 2;
  const uint32_t half_page = half_token * shape.block_tokens;
  if (tokens >= shape.block_tokens) return {{0, 2 * half_page}};
  return {{0, tokens * half_token}, {half_page, tokens * half_token}};
}

}  // namespace tangram::kv
