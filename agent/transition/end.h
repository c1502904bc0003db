// Effects of an attempt's end on memory and engines. Nothing here is under the core's lock.
#pragma once

#include <set>
#include <stop_token>
#include <string>

#include "agent/transition/core.h"

namespace tangram {

// Switches the rank's memory to the target. The gate flips afterwards.
Status CommitMemory(Core* core, uint32_t device);

// Requires that no thread works on the attempt. Engines and memory discard it, or (`keep`) retain
// its verified pieces as a source for a repair.
void DropAttempt(Core* core, const Job& job, const std::string& reason, bool keep);

// Retains the pieces that retirement would free, because a repair follows directly.
void KeepOldPlaces(Core* core, const Job& job);

// Engines unmap the old places, and they return to the pool.
Status ReturnOldPlaces(Core* core, const Job& job);

// The agents of the attempt, without this one.
std::set<std::string> OtherAgents(Core* core, const Job& job);

// The other agents' replies about the attempt, and the devices whose engine detached.
attempt::PeersSaid AskPeersOf(Core* core, const Job& job, const std::stop_token& stop);

}  // namespace tangram
