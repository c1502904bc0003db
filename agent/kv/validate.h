// Checks of a manifest before it is planned.
#pragma once

#include "agent/base/status.h"
#include "agent/kv/plan.h"

namespace tangram::kv {

// A KV head of a layer.
struct LayerHead {
  uint32_t layer = 0;
  uint32_t kv_head = 0;
  auto operator<=>(const LayerHead&) const = default;
};

// Blocks that so many positions take. Exact for every number of them: a sum in 32 bits would wrap.
constexpr uint32_t BlocksOf(uint32_t tokens, uint32_t block_tokens) {
  return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
}

// The group of `rank` in a layer and its position there, or nullptr.
const Group* FindGroup(const LayerGroups& groups, uint32_t rank, size_t* position);

// What `rank` holds of every block of `home`, ascending: for each layer whose group has both.
std::vector<LayerHead> HeldOf(const Shape& shape, const std::vector<LayerGroups>& groups,
                              uint32_t home, uint32_t rank);

// kInvalid names the first contradiction: a rank in two groups, bounds that do not cover
// the query heads, a page used twice, a block whose pages a rank of the home's group lacks, ...
Status Validate(const Input& input);

}  // namespace tangram::kv
