// The homes of requests, and their block ids there.
#pragma once

#include <vector>

#include "agent/base/status.h"
#include "agent/kv/plan.h"
#include "agent/kv/sides.h"

namespace tangram::kv {

// The input is valid, `spans` are its spans. kNoMemory: a request has no place.
Result<Plan> PlaceRequests(const Input& input, const std::vector<Span>& spans);

// Pages of a block of `old_home` that `rank` (new) already has as the old rank `old_rank` (-1: it
// joins), and that `home` (new) needs there.
uint64_t Overlap(const std::vector<Span>& spans, uint32_t old_home, int32_t old_rank, uint32_t home,
                 uint32_t rank);

// Old rank of each new one; -1: it joins.
std::vector<int32_t> OldOfNew(const Input& input);

}  // namespace tangram::kv
