// The CUDA driver that this process found: entry points by name, nothing linked. The same program
// builds and starts on a machine without a GPU; Load then returns the reason.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <string>

#include "agent/base/status.h"

static_assert(CUDA_VERSION >= 12000, "the headers of CUDA 12.0 or newer are needed");

namespace tangram::device {

// All functions of the driver in use, by the names of <cuda.h> without their `cu`. That header maps
// a name to its variant by macros.
#define TANGRAM_CUDA_ENTRY_POINTS(X) \
  X(Init)                            \
  X(DriverGetVersion)                \
  X(GetErrorName)                    \
  X(GetErrorString)                  \
  X(DeviceGetCount)                  \
  X(DeviceGet)                       \
  X(DeviceGetName)                   \
  X(DeviceGetAttribute)              \
  X(DeviceGetPCIBusId)               \
  X(DevicePrimaryCtxRetain)          \
  X(DevicePrimaryCtxRelease)         \
  X(CtxGetCurrent)                   \
  X(CtxSetCurrent)                   \
  X(CtxGetStreamPriorityRange)       \
  X(MemGetInfo)                      \
  X(MemGetAllocationGranularity)     \
  X(MemCreate)                       \
  X(MemRelease)                      \
  X(MemExportToShareableHandle)      \
  X(MemImportFromShareableHandle)    \
  X(MemAddressReserve)               \
  X(MemAddressFree)                  \
  X(MemMap)                          \
  X(MemUnmap)                        \
  X(MemSetAccess)                    \
  X(MemAlloc)                        \
  X(MemFree)                         \
  X(MemHostAlloc)                    \
  X(MemFreeHost)                     \
  X(MemcpyAsync)                     \
  X(Memcpy2DAsync)                   \
  X(StreamCreateWithPriority)        \
  X(StreamSynchronize)               \
  X(StreamDestroy)                   \
  X(EventCreate)                     \
  X(EventRecord)                     \
  X(EventQuery)                      \
  X(EventSynchronize)                \
  X(EventDestroy)                    \
  X(ModuleLoadData)                  \
  X(ModuleUnload)                    \
  X(ModuleGetFunction)               \
  X(LaunchKernel)

class CudaDriver {
 public:
  // The oldest supported version, as CUDA counts: 1000 major + 10 minor.
  static constexpr int kVersion = 12000;

  // Opens the driver's library (a name that the loader finds, or a path) and initialises it.
  // kInvalid, in one line: there is none, it is too old (with the missing function), or it finds no
  // device. It is never closed: a driver has its own threads.
  static Result<std::shared_ptr<const CudaDriver>> Load(const std::string& library);

  // Its CUDA version, e.g. "13.0".
  const std::string& version() const { return version_; }
  // The error of a failed call; `what` describes the call. kNoMemory: out of memory; kInvalid:
  // invalid arguments; else kInternal. The first error that makes the driver unusable for this
  // process is remembered.
  Status Check(CUresult result, const std::string& what) const;
  // kInternal, with that error: only a restart of the process helps.
  Status Health() const;

#define TANGRAM_CUDA_DECLARE(name) decltype(&::cu##name) name = nullptr;
  TANGRAM_CUDA_ENTRY_POINTS(TANGRAM_CUDA_DECLARE)
#undef TANGRAM_CUDA_DECLARE

 private:
  CudaDriver() = default;
  Status Resolve(void* library, const std::string& path);

  std::string version_;
  mutable std::mutex mu_;
  mutable Status health_;
};

}  // namespace tangram::device
