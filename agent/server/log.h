// Logs on stderr: JSON lines, or text for people.
#pragma once

#include "agent/server/config.h"

namespace tangram {
void SetUpLog(const AgentConfig& config);
}  // namespace tangram
