// Copies and hashes on a stream of a GPU.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "agent/device/cuda_answer.h"
#include "agent/device/cuda_batch.h"
#include "agent/device/cuda_context.h"
#include "agent/device/device.h"

namespace tangram::device {

// Checks a batch of copies before any work is done. kInvalid with the numbers.
Status CheckCopies(std::span<const CopyOp> ops);

// A stream of the device, which works in order, next to the device's other work. The copy engine
// copies ranges without a hash, and ranges from and to the host. Kernels do the rest: ranges with a
// hash in one pass, strips to and from the host by way of scratch. The waiting thread hashes bytes
// that arrive in memory of the host. A build without kernels hashes everything through a buffer,
// before the call returns. Thread-safe.
class CudaStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Make(std::shared_ptr<CudaContext> context);
  CudaStream(std::shared_ptr<CudaContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  ~CudaStream();  // waits for all of its work
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // The caller has checked the operations (CheckCopies). Blocks only if a batch is so large, or so
  // many are in progress, that no scratch is free.
  Event Copy(std::span<const CopyOp> ops);
  Event Hash(std::span<const HashOp> ops);

 private:
  // Bytes that are adjacent on both sides are one copy.
  struct Run {
    uint64_t to = 0, from = 0, bytes = 0;
  };
  // State of a batch while it is put on the stream.
  struct Batch {
    std::vector<AddressRange> uses;
    CudaBatch part;         // work for kernels, not launched yet
    std::vector<Run> runs;  // work for the copy engine, not issued yet
    std::vector<std::shared_ptr<CudaAnswer>> answers;
    std::vector<HashOp> of_host;
  };
  Status Add(const CopyOp& op, Batch* batch);
  Status AddHash(const Memory& memory, uint64_t* hash, Batch* batch);
  // Launches the work so far if there is no scratch for that much more.
  Status MakeRoom(const Memory& to, const Memory& from, Batch* batch);
  // PutRuns issues the copy engine's work; Launch also issues the kernels'.
  Status PutRuns(Batch* batch);
  Status Launch(Batch* batch);
  Event End(Status status, Batch batch);

  bool HasKernels() const { return launching_.kernels != nullptr; }
  Status HashByHost(const Memory& memory, uint64_t* hash);
  Status Put(const CopyOp& op, std::vector<Run>* runs);
  Status PutStrip(const CopyOp& op, const struct Strip& to, const struct Strip& from,
                  std::vector<Run>* runs);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
  CudaContext::Launching launching_;
};

}  // namespace tangram::device
