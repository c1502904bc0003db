// Wires of UCX: by RDMA where the NIC has it and the library was built for it, else by TCP.
#pragma once

#include <functional>
#include <memory>

#include "agent/device/device.h"
#include "agent/device/wire.h"

namespace tangram::device {

// What its buffers are: memory of so many bytes at least, and whether it is a GPU's.
struct UcxMemory {
  std::function<Result<std::unique_ptr<Device>>(uint64_t bytes)> make;
  bool gpu = false;
};

// kInvalid: no UCX here, it is another one than was built for, this build has no wires of UCX, or
// (memory of a GPU) the library was built without CUDA.
Result<std::unique_ptr<Wires>> MakeUcxWires(const UcxMemory& memory, const WireOptions& options);

}  // namespace tangram::device
