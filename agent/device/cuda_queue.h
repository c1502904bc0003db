// A queue that is a stream of a GPU.
#pragma once

#include <memory>

#include "agent/device/cuda_context.h"
#include "agent/device/queue.h"

namespace tangram::device {

// `stream`: the caller's, which outlives the queue; null: one of its own. kInvalid: this build has
// no kernels.
Result<std::unique_ptr<Queue>> MakeCudaQueue(std::shared_ptr<CudaContext> context, void* stream);

}  // namespace tangram::device
