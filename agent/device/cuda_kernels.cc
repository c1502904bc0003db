#include "agent/device/cuda_kernels.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/kernels.h"

namespace tangram::device {

Result<std::unique_ptr<const CudaKernels>> CudaKernels::Load(
    std::shared_ptr<const CudaDriver> driver) {
  CUmodule module = nullptr;
  TANGRAM_RETURN_IF_ERROR(driver->Check(
      driver->ModuleLoadData(&module, kernels::Image().data()),
      fmt::format("loading the kernels, an image of {} bytes", kernels::Image().size())));
  std::unique_ptr<CudaKernels> out(new CudaKernels(std::move(driver), module));
  TANGRAM_RETURN_IF_ERROR(out->Find("hash_sums", &out->hash_sums_));
  TANGRAM_RETURN_IF_ERROR(out->Find("copy_hash", &out->copy_hash_));
  TANGRAM_RETURN_IF_ERROR(out->Find("hash_chain", &out->hash_chain_));
  TANGRAM_RETURN_IF_ERROR(out->Find("copy_strips", &out->copy_strips_));
  return std::unique_ptr<const CudaKernels>(std::move(out));
}

CudaKernels::~CudaKernels() { (void)driver_->ModuleUnload(module_); }

Status CudaKernels::Find(const char* name, CUfunction* out) const {
  return driver_->Check(driver_->ModuleGetFunction(out, module_, name),
                        fmt::format("the kernel {}", name));
}

template <typename Parameters>
Status CudaKernels::Put(const char* name, CUfunction function, kernels::Launch launch,
                        const Parameters& parameters, CUstream stream) const {
  Parameters copy = parameters;  // the driver takes a non-const pointer
  void* all[] = {&copy};
  return driver_->Check(driver_->LaunchKernel(function, launch.blocks, 1, 1, launch.threads, 1, 1,
                                              0, stream, all, nullptr),
                        fmt::format("launching {} of {} blocks", name, launch.blocks));
}

Status CudaKernels::Chain(const kernels::HashParameters& parameters, CUstream stream) const {
  return Put("hash_chain", hash_chain_, kernels::HashChainLaunch(parameters, kMostBlocks),
             parameters, stream);
}

Status CudaKernels::Hash(const kernels::HashParameters& parameters, CUstream stream) const {
  TANGRAM_RETURN_IF_ERROR(Put("hash_sums", hash_sums_,
                              kernels::HashSumsLaunch(parameters, kMostBlocks), parameters,
                              stream));
  return Chain(parameters, stream);
}

Status CudaKernels::CopyAndHash(const kernels::HashParameters& parameters, CUstream stream) const {
  TANGRAM_RETURN_IF_ERROR(Put("copy_hash", copy_hash_,
                              kernels::HashSumsLaunch(parameters, kMostBlocks), parameters,
                              stream));
  return Chain(parameters, stream);
}

Status CudaKernels::CopyStrips(const kernels::CopyStripsParameters& parameters,
                               CUstream stream) const {
  return Put("copy_strips", copy_strips_, kernels::CopyStripsLaunch(parameters, kMostBlocks),
             parameters, stream);
}

}  // namespace tangram::device
