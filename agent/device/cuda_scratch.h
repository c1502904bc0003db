// Memory for the lists and results of kernels, and for their intermediate data.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "agent/device/cuda_answer.h"
#include "agent/device/cuda_driver.h"

namespace tangram::device {

// A ring of slots for all streams of a context. Each slot has device memory, and pinned host memory
// that mirrors its beginning. A slot is reused only after the stream has done its last work. All
// slots are created together, so a GPU without room for them fails at the start; a slot grows for a
// single operation that is too large for it. Thread-safe; the caller is in the context.
class CudaScratch {
 private:
  struct Slot {
    CUdeviceptr device = 0;
    void* host = nullptr;
    uint64_t bytes = 0, mirrored = 0;
    CUevent event = nullptr;           // the end of its last use
    std::weak_ptr<CudaAnswer> answer;  // expired: the event was dropped
  };

 public:
  // Maximum batches in progress; the next one waits.
  static constexpr size_t kSlots = 3;
  // Per slot. A batch launches its work when it would exceed this, except for a single larger
  // operation. Sums take a sixteenth of the hashed bytes, so this is enough for some 128 MiB.
  static constexpr uint64_t kBytes = 8 << 20, kMirrored = 256 << 10;

  // kNoMemory: too little memory for them.
  static Result<std::unique_ptr<CudaScratch>> Make(std::shared_ptr<const CudaDriver> driver);
  ~CudaScratch();  // waits for all work that uses it
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  // The next slot, for one caller, until this is destroyed.
  class Lease {
   public:
    std::byte* host() const { return static_cast<std::byte*>(slot_->host); }
    CUdeviceptr device() const { return slot_->device; }
    // Marks the slot as used until the stream has done the work so far. `answer`, if any, arrives
    // in its pinned memory. If this fails, the caller waits until its work is done.
    Status Until(CUstream stream, const std::shared_ptr<CudaAnswer>& answer);

   private:
    friend class CudaScratch;
    const CudaDriver* driver_ = nullptr;
    Slot* slot_ = nullptr;
    std::unique_lock<std::mutex> lock_;
  };

  // `mirrored` of `bytes` also in pinned memory. kNoMemory with the numbers.
  Result<Lease> Take(uint64_t bytes, uint64_t mirrored);

 private:
  explicit CudaScratch(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  Status Grow(Slot* slot, uint64_t bytes, uint64_t mirrored);
  void Free(Slot* slot);

  const std::shared_ptr<const CudaDriver> driver_;
  std::mutex mu_;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
};

}  // namespace tangram::device
