// Plays acts, each in a process of its own, and sums up what they told.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/acts.h"

namespace tangram::gpu {

// Its records, in order, and at their end one of kind "ended": how long it took, and `how` where
// it broke off (a signal, an error, its time was over). Before it no process of this one may have
// opened the driver.
std::vector<Json> Play(const Act& act, Task task);

// All of it, with date, driver and device.
Json Summary(const std::string& date, std::vector<Json> records);
// Bytes differ, or an act broke off. What lacked something, or missed a goal, is not wrong.
bool IsRight(const Json& summary);
// The table for people.
std::string Markdown(const Json& summary);

}  // namespace tangram::gpu
