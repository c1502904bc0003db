// Replaces the backend if the build found no <cuda.h>.
#include "agent/device/cuda_platform.h"

namespace tangram::device {

Result<std::unique_ptr<Platform>> MakeCudaPlatform(const PlatformOptions&) {
  return Status(Code::kInvalid,
                "platform cuda: not part of this build, which found no cuda.h (configure with "
                "-DTANGRAM_CUDA_INCLUDE=<folder of the CUDA toolkit's headers>)");
}

}  // namespace tangram::device
