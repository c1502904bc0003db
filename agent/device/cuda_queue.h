// A queue on a stream of a GPU.
#pragma once

#include <memory>

#include "agent/device/cuda_context.h"
#include "agent/device/queue.h"

namespace tangram::device {

// `stream`: the caller's, which outlives the queue; null: a new one. kInvalid: this build has no
// kernels.
Result<std::unique_ptr<Queue>> MakeCudaQueue(std::shared_ptr<CudaContext> context, void* stream);

}  // namespace tangram::device
