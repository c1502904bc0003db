// What the end of an attempt does to memory and engines. Nothing here is under the core's lock.
#pragma once

#include <set>
#include <stop_token>
#include <string>

#include "agent/transition/core.h"

namespace tangram {

// The rank's memory goes over to the target. The gate follows.
Status CommitMemory(Core* core, uint32_t device);

// Nothing works on the attempt any more. Engines and memory forget it, or (`keep`) what is
// verified stays, as a source for a repair.
void DropAttempt(Core* core, const Job& job, const std::string& reason, bool keep);

// What a flip would give back stays, since a repair follows it at once.
void KeepOldPlaces(Core* core, const Job& job);

// Engines unmap them, and the pool has them back.
Status ReturnOldPlaces(Core* core, const Job& job);

// Whom it is about, but for this agent.
std::set<std::string> OtherAgents(Core* core, const Job& job);

// What the other agents say of the attempt, and whose engine is gone.
attempt::PeersSaid AskPeersOf(Core* core, const Job& job, const std::stop_token& stop);

}  // namespace tangram
