// Comm channels of UCX: by RDMA if the NIC has it and the library was built for it, else by TCP.
#pragma once

#include <functional>
#include <memory>

#include "agent/device/device.h"
#include "agent/device/wire.h"

namespace tangram::device {

// The kind of its buffers: creates memory of at least `bytes`, and states whether it is a GPU's.
struct UcxMemory {
  std::function<Result<std::unique_ptr<Device>>(uint64_t bytes)> make;
  bool gpu = false;
};

// kInvalid: no UCX here, another version than the build's, a build without UCX, or (memory of a
// GPU) a library that was built without CUDA.
Result<std::unique_ptr<Wires>> MakeUcxWires(const UcxMemory& memory, const WireOptions& options);

}  // namespace tangram::device
