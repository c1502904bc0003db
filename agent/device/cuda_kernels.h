// The kernels (kernels/) as loaded in a context: hashes, copies with a hash, copies of strips.
#pragma once

#include <memory>
#include <string>

#include "agent/device/cuda_driver.h"
#include "kernels/parameters.h"

namespace tangram::device {

// The caller is in the context in which it was loaded.
class CudaKernels {
 public:
  // The lowest compute capability for which the image has code; it has code for all newer ones.
  static constexpr int kLeastMajor = 8;
  // Maximum blocks of a launch, so that decoding continues in parallel: at most a quarter of the
  // multiprocessors of an H200 (132). Each block has some 64 KiB of loads in flight, together 2
  // MiB. That is what memory of 4.8 TB/s has in flight in 400 ns, about its latency (calculated,
  // not measured).
  static constexpr uint32_t kMostBlocks = 32;

  // kInternal: the driver rejects the image, with the driver's error.
  static Result<std::unique_ptr<const CudaKernels>> Load(std::shared_ptr<const CudaDriver> driver);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Put on the stream. Parameters are copied now; lists are read when the kernel runs.
  Status Hash(const kernels::HashParameters& parameters, CUstream stream) const;
  Status CopyAndHash(const kernels::HashParameters& parameters, CUstream stream) const;
  Status CopyStrips(const kernels::CopyStripsParameters& parameters, CUstream stream) const;
  // Any kernel of the image; kInternal: no kernel has this name.
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
