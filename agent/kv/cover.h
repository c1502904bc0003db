// The proof of a KV plan, independent of how plans are made.
#pragma once

#include "agent/base/status.h"
#include "agent/kv/plan.h"

namespace tangram::kv {

// Carries the plan out on names instead of bytes and checks that afterwards
//   - every (request, layer, KV head that a rank of its new home's group needs, position) is
//     present on that rank exactly once, and is that request's position;
//   - requests share a block only where they shared it before, and no rank gets two copies
//     of a block under one name;
//   - every page of a rank is kept, freed or was free before; none twice; nothing else is
//     there; pages that arrive fit into the free pages;
//   - the reservations of all requests fit beside it.
// kInternal names the first thing that is wrong.
Status CoverCheck(const Input& input, const Plan& plan);

}  // namespace tangram::kv
