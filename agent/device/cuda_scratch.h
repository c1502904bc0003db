// Memory by which kernels are told their lists and answer, and where they keep what they need on
// the way.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "agent/device/cuda_answer.h"
#include "agent/device/cuda_driver.h"

namespace tangram::device {

// A ring of slots, for all streams of a context, each of which has memory of the device and pinned
// memory of the host that mirrors how it begins. A slot is not used again before what was put on a
// stream with it is over. They are made at once, so that a GPU without room for them shows at the
// start; one that a single operation is too large for grows then. Thread-safe; whoever calls is in
// the context.
class CudaScratch {
 private:
  struct Slot {
    CUdeviceptr device = 0;
    void* host = nullptr;
    uint64_t bytes = 0, mirrored = 0;
    CUevent event = nullptr;           // the end of what used it last
    std::weak_ptr<CudaAnswer> answer;  // who dropped its event wants none
  };

 public:
  // Of batches under way at once; the next one waits.
  static constexpr size_t kSlots = 3;
  // Of a slot: what a batch tells kernels at once is no more, unless it is one operation. A
  // sixteenth of what is hashed, so it is of some 128 MiB.
  static constexpr uint64_t kBytes = 8 << 20, kMirrored = 256 << 10;

  // kNoMemory: there is no room for them.
  static Result<std::unique_ptr<CudaScratch>> Make(std::shared_ptr<const CudaDriver> driver);
  ~CudaScratch();  // everything that was put on streams with it is over
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  // The next slot, for one caller, until this goes.
  class Lease {
   public:
    std::byte* host() const { return static_cast<std::byte*>(slot_->host); }
    CUdeviceptr device() const { return slot_->device; }
    // What was put on the stream so far uses it. `answer`, if any, comes to its pinned memory. Who
    // put something there and cannot say so waits until it is over.
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
