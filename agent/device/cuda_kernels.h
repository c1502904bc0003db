// What kernels (kernels/) do for a stream of a GPU: hashes where the bytes lie, and copies of what
// is no range.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "agent/device/cuda_context.h"
#include "agent/device/device.h"
#include "kernels/kernels.h"

namespace tangram::device {

// Lists that the driver reads: they are kept until the stream is past what was put there with them.
using CudaLists = std::vector<std::shared_ptr<const std::vector<kernels::CopyStrip>>>;

// Of one stream. What launches need lies in memory of the device, which is made when it is first
// used and grows to what is asked for: lists, results, and a sixteenth of the bytes that are hashed
// at once. The stream's order keeps one use of it from the next. Thread-safe.
class CudaKernels {
 public:
  // Null: this build has no kernels (-DTANGRAM_CUDA=OFF). kInternal: the device does not take them.
  static Result<std::unique_ptr<CudaKernels>> Make(std::shared_ptr<CudaContext> context,
                                                   CUstream stream);
  ~CudaKernels();  // the stream is idle
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Puts a copy of strips, between memories of the device, on the stream.
  Status Copy(std::vector<kernels::CopyStrip> strips, CudaLists* lists);
  // Of memory of the device, behind what is on the stream; units of a slab are brought together
  // first. Hashes are written to where they are wanted when the event is waited for or found done.
  Event Hash(std::span<const HashOp> ops);

 private:
  struct Results;
  class HashEvent;

  CudaKernels(std::shared_ptr<CudaContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  Status Load();
  // Room for so many bytes; if it has to grow, once the stream is idle.
  Status Grow(uint64_t bytes);
  Status Launch(CUfunction kernel, const kernels::Launch& grid, const void* parameters,
                const std::string& what);
  // A copy whose list lies at `list` of the device.
  Status PutStrips(uint64_t list, std::vector<kernels::CopyStrip> strips, CudaLists* lists);
  // Puts the hashes of some of the ops on the stream.
  Status PutHashes(std::span<const HashOp> ops, Results* results);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
  CUmodule module_ = nullptr;
  CUfunction sums_ = nullptr, chain_ = nullptr, strips_ = nullptr;
  std::mutex mu_;  // the order of what is put on the stream, and what follows
  std::unique_ptr<Device> memory_;
  SpacePtr space_;
  Mapping mapped_;
};

}  // namespace tangram::device
