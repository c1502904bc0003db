// Runs acts, each in a separate process, and sums up their records.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/acts.h"

namespace tangram::gpu {

// The act's records, in order, and finally one of kind "ended": its duration, and `how` it broke
// off, if so (a signal, an error, a timeout). This process must not have opened the driver before.
std::vector<Json> Play(const Act& act, Task task);

// The whole report, with date, driver and device.
Json Summary(const std::string& date, std::vector<Json> records);
// False: bytes differ, or an act broke off. An act that lacked something or missed a goal is not
// wrong.
bool IsRight(const Json& summary);
// The summary as a Markdown table.
std::string Markdown(const Json& summary);

}  // namespace tangram::gpu
