// The platform `cuda`. For platform.cc alone.
#pragma once

#include <memory>

#include "agent/device/platform.h"

namespace tangram::device {

// kInvalid: this build has none, or this machine none that could be used, or it does not map in
// such multiples; in one line.
Result<std::unique_ptr<Platform>> MakeCudaPlatform(const PlatformOptions& options);

}  // namespace tangram::device
