// A queue on the host.
#pragma once

#include <memory>

#include "agent/device/queue.h"

namespace tangram::device {

std::unique_ptr<Queue> MakeHostQueue();

}  // namespace tangram::device
