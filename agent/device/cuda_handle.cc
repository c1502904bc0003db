#include "agent/device/cuda_handle.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tangram::device {

Result<CudaHandlePtr> CudaHandle::Create(std::shared_ptr<CudaContext> context, uint64_t bytes) {
  const CudaDriver& driver = context->driver();
  const CudaContext::Entered in(*context);
  const CUmemAllocationProp properties = context->properties();
  CUmemGenericAllocationHandle handle = 0;
  Status status = driver.Check(driver.MemCreate(&handle, bytes, &properties, 0),
                               fmt::format("a handle of {} bytes", bytes));
  if (status.code() == Code::kNoMemory) {
    return Status(Code::kNoMemory, fmt::format("{}; {}", status.message(), context->Room()));
  }
  if (!status.ok()) return status;
  return std::make_shared<const CudaHandle>(std::move(context), handle, bytes);
}

Result<CudaHandlePtr> CudaHandle::Import(std::shared_ptr<CudaContext> context, int descriptor,
                                         uint64_t bytes) {
  const CudaDriver& driver = context->driver();
  const CudaContext::Entered in(*context);
  CUmemGenericAllocationHandle handle = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  const CUresult result = driver.MemImportFromShareableHandle(
      &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) {
    // kInvalid for every error of the driver: the descriptor is not the promised memory.
    const Status why = driver.Check(result, fmt::format("importing descriptor {}", descriptor));
    return Status(Code::kInvalid, why.message() + "; is it memory of a GPU that this process has?");
  }
  return std::make_shared<const CudaHandle>(std::move(context), handle, bytes);
}

Result<CudaHandlePtr> CudaHandle::Adopt(std::shared_ptr<CudaContext> context, int descriptor,
                                        uint64_t bytes) {
  auto handle = Import(std::move(context), descriptor, bytes);
  if (!handle.ok()) return handle.status();
  UniqueFd kept(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!kept) {
    return Status(Code::kInternal, fmt::format("cuda: duplicating descriptor {}: {}", descriptor,
                                               std::strerror(errno)));
  }
  (*handle)->descriptor_ = std::make_shared<const UniqueFd>(std::move(kept));
  return handle;
}

CudaHandle::~CudaHandle() {
  const CudaContext::Entered in(*context_);
  (void)context_->driver().MemRelease(handle_);
}

Result<SharedFd> CudaHandle::Descriptor() const {
  const std::scoped_lock lock(mu_);
  if (descriptor_ != nullptr) return descriptor_;
  const CudaDriver& driver = context_->driver();
  const CudaContext::Entered in(*context_);
  int descriptor = -1;
  TANGRAM_RETURN_IF_ERROR(driver.Check(
      driver.MemExportToShareableHandle(&descriptor, handle_,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      fmt::format("exporting a handle of {} bytes (see also the limit of open files)", bytes_)));
  UniqueFd own(descriptor);
  // A child process must not keep the memory alive.
  if (const int flags = fcntl(descriptor, F_GETFD); flags >= 0) {
    (void)fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC);
  }
  descriptor_ = std::make_shared<const UniqueFd>(std::move(own));
  return descriptor_;
}

}  // namespace tangram::device
