// Physical memory of a GPU, as the driver has it: handles, which are mapped as a whole or not at
// all.
#pragma once

#include <memory>
#include <mutex>

#include "agent/base/unique_fd.h"
#include "agent/device/cuda_context.h"

namespace tangram::device {

// Its memory lives until the last handle (imports included), mapping and descriptor of it are gone.
class CudaHandle {
 public:
  // kNoMemory with the device's free bytes.
  static Result<std::shared_ptr<const CudaHandle>> Create(std::shared_ptr<CudaContext> context,
                                                          uint64_t bytes);
  // From a descriptor that this or another process exported. A wrong `bytes` shows only at mapping:
  // the driver reports no sizes.
  static Result<std::shared_ptr<const CudaHandle>> Import(std::shared_ptr<CudaContext> context,
                                                          int descriptor, uint64_t bytes);
  // The same, and keeps a duplicate of the descriptor for export to others.
  static Result<std::shared_ptr<const CudaHandle>> Adopt(std::shared_ptr<CudaContext> context,
                                                         int descriptor, uint64_t bytes);
  CudaHandle(std::shared_ptr<CudaContext> context, CUmemGenericAllocationHandle handle,
             uint64_t bytes)
      : context_(std::move(context)), handle_(handle), bytes_(bytes) {}
  ~CudaHandle();
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  CUmemGenericAllocationHandle get() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  // The descriptor that other processes import; created once. Thread-safe.
  Result<SharedFd> Descriptor() const;

 private:
  const std::shared_ptr<CudaContext> context_;
  const CUmemGenericAllocationHandle handle_;
  const uint64_t bytes_;
  mutable std::mutex mu_;
  mutable SharedFd descriptor_;
};
using CudaHandlePtr = std::shared_ptr<const CudaHandle>;

}  // namespace tangram::device
