// The platform `cuda`. Only platform.cc includes this.
#pragma once

#include <memory>

#include "agent/device/platform.h"

namespace tangram::device {

// kInvalid, in one line: this build has no CUDA, this machine has no usable GPU, or it does not map
// in such multiples.
Result<std::unique_ptr<Platform>> MakeCudaPlatform(const PlatformOptions& options);

}  // namespace tangram::device
