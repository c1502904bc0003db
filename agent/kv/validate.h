// Checks of a manifest before it is planned.
#pragma once

#include <vector>

#include "agent/base/status.h"
#include "agent/kv/plan.h"
#include "agent/kv/sides.h"

namespace tangram::kv {

// Blocks for this many positions. Exact for every number: a 32-bit sum could wrap.
constexpr uint32_t BlocksOf(uint32_t tokens, uint32_t block_tokens) {
  return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
}

// kInvalid names the first contradiction: a rank in two groups, bounds that do not cover the query
// heads, strips that differ from a rank's groups, a request twice, ... `spans` is set if the groups
// are valid.
Status Validate(const Input& input, std::vector<Span>* spans);

// kInvalid: the old rank's strips have a page twice.
Status ValidatePages(const Input& input, uint32_t rank);

}  // namespace tangram::kv
