// What the executor tells: to the driver, to other agents, to those who count.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/transition/core.h"

namespace tangram {

// `asked`: with the layout and the inventories, but for what the caller knows; null: without.
// The next attempt of a run counts on from the one before.
void CarryOver(Core* core, const Job& from, Job* to);
v1::StatusResponse StatusOf(Core* core, const v1::StatusRequest* asked);

// kWrongWorld.
Result<v1::QueryResponse> ViewOf(Core* core, const v1::QueryRequest& request);

// What a refusal tells: the world, the epoch, the highest attempt.
v1::Header CurrentHeader(Core* core);

// Tokens of each expert that this device's engine routed or executed, [moe layers * experts].
std::vector<uint64_t> MissedOf(Core* core, uint32_t device);
std::vector<uint64_t> CountersOf(Core* core, uint32_t device, TokenCount what);
v1::ExpertLoadResponse LoadOf(Core* core);

}  // namespace tangram
