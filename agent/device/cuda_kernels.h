// The kernels (kernels/) as a context has them: hashes, copies with a hash, copies of strips.
#pragma once

#include <memory>
#include <string>

#include "agent/device/cuda_driver.h"
#include "kernels/parameters.h"

namespace tangram::device {

// Whoever calls is in the context that it was loaded in.
class CudaKernels {
 public:
  // Compute capability that the image has code for, and everything newer.
  static constexpr int kLeastMajor = 8;
  // Of a launch, so that decoding goes on beside: a quarter of the multiprocessors of an H200 (132)
  // at most. Each block has some 64 KiB of loads under way, all together 2 MiB, and that is what
  // memory of 4.8 TB/s has under way in 400 ns, about its latency (arithmetic, not measured).
  static constexpr uint32_t kMostBlocks = 32;

  // kInternal: the driver does not take the image, and by what name it calls that.
  static Result<std::unique_ptr<const CudaKernels>> Load(std::shared_ptr<const CudaDriver> driver);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Put on the stream; lists are read when it gets there, parameters now.
  Status Hash(const kernels::HashParameters& parameters, CUstream stream) const;
  Status CopyAndHash(const kernels::HashParameters& parameters, CUstream stream) const;
  Status CopyStrips(const kernels::CopyStripsParameters& parameters, CUstream stream) const;
  // Any kernel of the image; kInternal: there is none of this name.
  Status Function(const std::string& name, CUfunction* out) const {
    return Find(name.c_str(), out);
  }

 private:
  CudaKernels(std::shared_ptr<const CudaDriver> driver, CUmodule module)
      : driver_(std::move(driver)), module_(module) {}
  Status Find(const char* name, CUfunction* out) const;
  Status Chain(const kernels::HashParameters& parameters, CUstream stream) const;
  template <typename Parameters>
  Status Put(const char* name, CUfunction function, kernels::Launch launch,
             const Parameters& parameters, CUstream stream) const;

  const std::shared_ptr<const CudaDriver> driver_;
  const CUmodule module_;
  CUfunction hash_sums_ = nullptr, copy_hash_ = nullptr, hash_chain_ = nullptr,
             copy_strips_ = nullptr;
};

}  // namespace tangram::device
