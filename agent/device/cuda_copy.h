// Copies on a stream of a GPU, and hashes by way of the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agent/device/cuda_context.h"
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
  // HashOf the bytes in order, by way of a buffer of the host; waited for.
  Status Hash(const Memory& memory, uint64_t* hash);

 private:
  Status Put(const CopyOp& op);
  Status PutStrip(const CopyOp& op, const struct Strip& to, const struct Strip& from);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
};

}  // namespace tangram::device
