// The attention groups of a layout in the form of the KV plan.
#pragma once

#include <vector>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/kv/plan.h"

namespace tangram::engine {

// [layers]. kInvalid: a rank is in two groups of a layer, or heads are missing.
Result<std::vector<kv::LayerGroups>> GroupsOf(const tg_maps& maps, const tg_model& model);
// Whether `rank` may be the home of requests: it is in an attention group of every layer.
bool Accepts(const std::vector<kv::LayerGroups>& groups, uint32_t rank);

}  // namespace tangram::engine
