// From whom a rank gets KV at a flip, before anyone knows what requests there are.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/kv/plan.h"

namespace tangram::kv {

// The other old ranks, ascending, of which `rank` (new numbering) may need KV if every request
// whose home stays has room there. Who has none goes wherever there is room, and its sources are
// not among these. Looks at shape, groups and numbers alone; `input.ranks` counts, and is not read.
std::vector<uint32_t> LikelySources(const Input& input, uint32_t rank);

}  // namespace tangram::kv
