// The proof of a KV plan, independent of the planner. It derives the needed blocks from the
// manifest and the homes of the requests, layer by layer and query head by query head.
#pragma once

#include "agent/base/status.h"
#include "agent/kv/plan.h"

namespace tangram::kv {

// Checks the plan that all ranks have in common, for a valid manifest:
//   - every request has a home in a group of every layer that holds all KV heads, and as many
//     blocks as its length takes, all below the home's next_block;
//   - requests share a block only where they shared it before, and no home gets two copies
//     of a block, or two blocks under one name.
// kInternal names the first error.
Status CheckHomes(const Input& input, const Plan& plan);

// CheckHomes, and one rank's part. After its execution,
//   - every (request, layer, KV head that the rank needs of it, position) is present exactly
//     once, and comes from its place in the manifest; no other content is present;
//   - every page of the rank is kept, freed or was free before, none twice; arriving pages
//     fit into the free ones, and the reservations of all requests fit next to them.
// Cost grows with the pages that the rank has and gets. kInternal names the first error.
Status CheckPart(const Input& input, const Plan& plan, uint32_t rank, const RankPlan& part);

// MakePart, and CheckPart of its result. kInternal also for a rank that the target does not have.
Result<RankPlan> ProvenPart(const Input& input, const Plan& plan, uint32_t rank);

}  // namespace tangram::kv
