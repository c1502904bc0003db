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

// What a batch of copies does not allow; nothing was done then. kInvalid with the numbers.
Status CheckCopies(std::span<const CopyOp> ops);

// A stream of the device, which does what it is given in order, behind what others compute there.
// Ranges without a hash, and ranges from and to the host, are copied by the copy engine; the rest
// by kernels: ranges with a hash on one pass, strips to and from the host by way of scratch. What
// arrives in memory of the host is hashed by whoever waits, and so is everything in a build without
// kernels, by way of a buffer: such a batch is over when it returns. Thread-safe.
class CudaStream {
 public:
  static Result<std::unique_ptr<CudaStream>> Make(std::shared_ptr<CudaContext> context);
  CudaStream(std::shared_ptr<CudaContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  ~CudaStream();  // what it was given is over then
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Checked before (CheckCopies). Waits only where a batch is so large, or so many are under way,
  // that there is no scratch for it.
  Event Copy(std::span<const CopyOp> ops);
  Event Hash(std::span<const HashOp> ops);

 private:
  // Bytes side by side on both sides are one copy.
  struct Run {
    uint64_t to = 0, from = 0, bytes = 0;
  };
  // While it is put on the stream.
  struct Batch {
    std::vector<AddressRange> uses;
    CudaBatch part;         // what kernels do, and are not told yet
    std::vector<Run> runs;  // for the copy engine, which is not told either
    std::vector<std::shared_ptr<CudaAnswer>> answers;
    std::vector<HashOp> of_host;
  };
  Status Add(const CopyOp& op, Batch* batch);
  Status AddHash(const Memory& memory, uint64_t* hash, Batch* batch);
  // Has what there is told, if there is no scratch for that much more.
  Status MakeRoom(const Memory& to, const Memory& from, Batch* batch);
  // Has the copy engine told, then kernels.
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
