// The check's calls of the CUDA driver beyond those of the backend (agent/device/cuda_driver.h):
// waits between streams, clocks, host callbacks, batches, graphs.
#pragma once

#include <cuda.h>

#include <string>

#include "agent/base/status.h"

namespace tangram::gpu {

// The names of <cuda.h> without `cu`.
#define TANGRAM_GPU_ENTRY_POINTS(X) \
  X(DeviceGetPCIBusId)              \
  X(DeviceCanAccessPeer)            \
  X(DeviceGetP2PAttribute)          \
  X(LaunchHostFunc)                 \
  X(StreamWaitEvent)                \
  X(EventElapsedTime)               \
  X(StreamBeginCapture)             \
  X(StreamEndCapture)               \
  X(GraphInstantiateWithFlags)      \
  X(GraphLaunch)                    \
  X(GraphExecDestroy)               \
  X(GraphDestroy)

struct MoreDriver {
  // kInvalid, in one line: the library lacks an entry point.
  static Result<MoreDriver> Load(const std::string& library);

#define TANGRAM_GPU_DECLARE(name) decltype(&::cu##name) name = nullptr;
  TANGRAM_GPU_ENTRY_POINTS(TANGRAM_GPU_DECLARE)
#undef TANGRAM_GPU_DECLARE

  // From CUDA 13 on; null: the driver is older.
  CUresult (*MemcpyBatchAsync)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* first, size_t kinds,
                               CUstream stream) = nullptr;
};

}  // namespace tangram::gpu
