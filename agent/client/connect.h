// The socket of an agent.
#pragma once

#include <string>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

// kUnavailable: no process listens there.
Result<UniqueFd> ConnectTo(const std::string& path);
Code CodeOf(v1::Refusal::Code code);

}  // namespace tangram
