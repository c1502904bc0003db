// Wires of NCCL: between GPUs of any two processes, by whatever way NCCL finds (NVLink, InfiniBand,
// RoCE, sockets). A wire is a communicator of two ranks that does not block, with a stream and
// buffers of its own; nothing is registered with it, so memory may be unmapped and mapped as ever.
#pragma once

#include <memory>

#include "agent/device/cuda_context.h"
#include "agent/device/wire.h"

namespace tangram::device {

// kInvalid: no NCCL, or too old a one (nccl_library.h).
Result<std::unique_ptr<Wires>> MakeNcclWires(std::shared_ptr<CudaContext> context,
                                             const WireOptions& options);

}  // namespace tangram::device
