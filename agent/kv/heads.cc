#include "agent/kv/plan.h"

namespace tangram::kv {

std::pair<uint32_t, uint32_t> HeldKvHeads(const Shape& shape, const Group& group, size_t position) {
  const uint32_t begin = group.query_head_bounds[position];
  const uint32_t end = group.query_head_bounds[position + 1];
  if (begin == end) return {0, 0};
  const uint32_t queries_per_kv = shape.query_heads / shape.kv_heads;
  return {begin / queries_per_kv, (end - 1) / queries_per_kv + 1};
}

}  // namespace tangram::kv
