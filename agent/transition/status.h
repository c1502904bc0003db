// Reports of the executor: to the driver, to other agents, to metrics.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/transition/core.h"

namespace tangram {

// Adds the figures of a run's previous attempt to those of the next one.
void CarryOver(Core* core, const Job& from, Job* to);
// `asked`: with layout and inventories, except those the caller knows; null: without both.
v1::StatusResponse StatusOf(Core* core, const v1::StatusRequest* asked);

// kWrongWorld.
Result<v1::QueryResponse> ViewOf(Core* core, const v1::QueryRequest& request);

// For rejections: the world, the epoch, the highest attempt.
v1::Header CurrentHeader(Core* core);

// Tokens of each expert that this device's engine routed or executed, [moe layers * experts].
std::vector<uint64_t> MissedOf(Core* core, uint32_t device);
std::vector<uint64_t> CountersOf(Core* core, uint32_t device, TokenCount what);
v1::ExpertLoadResponse LoadOf(Core* core);

}  // namespace tangram
