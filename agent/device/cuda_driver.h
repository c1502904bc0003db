// The CUDA driver as this process found it: entry points by name, nothing linked. A machine without
// a GPU builds and starts the same program, and learns at Load why there is none.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <string>

#include "agent/base/status.h"

static_assert(CUDA_VERSION >= 12000, "the headers of CUDA 12.0 or newer are needed");

namespace tangram::device {

// All that is used of the driver, by the names of <cuda.h> without their `cu`. Which variant of a
// function such a name means is that header's affair: it maps names to variants by macros.
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
  // The oldest version whose entry points these are, as CUDA counts: 1000 major + 10 minor.
  static constexpr int kVersion = 12000;

  // Opens the driver's library (a name that the loader finds, or a path) and initialises it.
  // kInvalid, in one line: there is none, it is too old (and what it lacks), or it finds no device.
  // It is never closed: a driver has threads of its own.
  static Result<std::shared_ptr<const CudaDriver>> Load(const std::string& library);

  // The CUDA version that it is of, e.g. "13.0".
  const std::string& version() const { return version_; }
  // What a call that failed means; `what` was tried. kNoMemory: for want of memory; kInvalid: what
  // it was given makes no sense; else kInternal.
  // An error after which the driver does no more for this process is remembered, the first one.
  Status Check(CUresult result, const std::string& what) const;
  // kInternal, with that error: nothing can be done any more but to start the process anew.
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
