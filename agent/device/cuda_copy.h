// Copies and hashes on a stream of a GPU.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agent/device/cuda_context.h"
#include "agent/device/cuda_kernels.h"
#include "agent/device/device.h"

namespace tangram::device {

// What a batch of copies does not allow; nothing was done then. kInvalid with the numbers.
Status CheckCopies(std::span<const CopyOp> ops);

// A stream of the device, which does its copies in order, behind what others compute there.
class CudaStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Make(std::shared_ptr<CudaContext> context);
  CudaStream(std::shared_ptr<CudaContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  ~CudaStream();  // what it was given is over then
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Hashes that are asked for are no part of it. Checked before (CheckCopies).
  Event Copy(std::span<const CopyOp> ops);
  // Of ranges of the device by its kernels; units of a slab, and all where the build has no
  // kernels, by way of a buffer of the host: the batch is over then when this returns.
  Event Hash(std::span<const HashOp> ops);

 private:
  Status HashByHost(const Memory& memory, uint64_t* hash);
  // Strips between memories of the device are left to `apart`, if kernels can copy them.
  Status Put(const CopyOp& op, std::vector<kernels::CopyStrip>* apart);
  Status PutStrip(const CopyOp& op, const struct Strip& to, const struct Strip& from,
                  std::vector<kernels::CopyStrip>* apart);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
  std::unique_ptr<CudaKernels> kernels_;  // null: this build has none
};

}  // namespace tangram::device
