// Hashes where the bytes lie: the kernels hash_sums and hash_chain (kernels/) on a stream of a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "agent/device/cuda_context.h"
#include "agent/device/device.h"

namespace tangram::device {

// Of one stream. What it needs lies in memory of the device, which is made when it is first used
// and grows to what is asked for: lists, results, and a sixteenth of the bytes that are hashed at
// once. The stream's order keeps one use of it from the next.
class CudaHasher {
 public:
  // Null: this build has no kernels (-DTANGRAM_CUDA=OFF). kInternal: the device does not take them.
  static Result<std::unique_ptr<CudaHasher>> Make(std::shared_ptr<CudaContext> context,
                                                  CUstream stream);
  ~CudaHasher();  // the stream is idle
  CudaHasher(const CudaHasher&) = delete;
  CudaHasher& operator=(const CudaHasher&) = delete;

  // Of ranges of the device (no shapes), behind what is on the stream. Hashes are written to where
  // they are wanted when the event is waited for or found done. Thread-safe.
  Event Hash(std::span<const HashOp> ops);

 private:
  struct Results;
  class HashEvent;

  CudaHasher(std::shared_ptr<CudaContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  Status Load();
  // Room for so many bytes; if it has to grow, once the stream is idle.
  Status Grow(uint64_t bytes);
  // Puts the work for some of the ops on the stream.
  Status Put(std::span<const HashOp> ops, Results* results);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
  CUmodule module_ = nullptr;
  CUfunction sums_ = nullptr, chain_ = nullptr;
  std::mutex mu_;  // the order of what is put on the stream, and what follows
  std::unique_ptr<Device> memory_;
  SpacePtr space_;
  Mapping mapped_;
};

}  // namespace tangram::device
