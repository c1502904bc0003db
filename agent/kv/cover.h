// The proof of a KV plan, independent of how plans are made: what is needed is derived from the
// manifest and the homes of the requests, layer by layer and query head by query head.
#pragma once

#include "agent/base/status.h"
#include "agent/kv/plan.h"

namespace tangram::kv {

// What all ranks know alike, on a valid manifest:
//   - every request has a home in a group of every layer that holds all KV heads, and as many
//     blocks as its length takes, all below the home's next_block;
//   - requests share a block only where they shared it before, and no home gets two copies
//     of a block, or two blocks under one name.
// kInternal names the first thing that is wrong.
Status CheckHomes(const Input& input, const Plan& plan);

// CheckHomes, and one rank's part. Carried out,
//   - every (request, layer, KV head that the rank needs of it, position) is present exactly
//     once, and comes from where the manifest says it lies; nothing else is there;
//   - every page of the rank is kept, freed or was free before, none twice; pages that arrive
//     fit into the free ones, and the reservations of all requests fit beside it.
// Grows with what the rank has and gets. kInternal names the first thing that is wrong.
Status CheckPart(const Input& input, const Plan& plan, uint32_t rank, const RankPlan& part);

// MakePart, and CheckPart of what it makes. kInternal also for a rank that the target does not
// have.
Result<RankPlan> ProvenPart(const Input& input, const Plan& plan, uint32_t rank);

}  // namespace tangram::kv
