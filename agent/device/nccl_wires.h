// Comm channels of NCCL: between GPUs of any two processes, over any path that NCCL finds (NVLink,
// InfiniBand, RoCE, sockets). A channel is a non-blocking communicator of two ranks, with its own
// stream and buffers. No other memory is registered with it, so memory may be unmapped and mapped
// at any time.
#pragma once

#include <memory>

#include "agent/device/cuda_context.h"
#include "agent/device/wire.h"

namespace tangram::device {

// kInvalid: no NCCL, or one that is too old (nccl_library.h).
Result<std::unique_ptr<Wires>> MakeNcclWires(std::shared_ptr<CudaContext> context,
                                             const WireOptions& options);

}  // namespace tangram::device
