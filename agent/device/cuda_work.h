// Work of a GPU in progress: events, and the memory that they use.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "agent/device/event.h"
#include "agent/device/memory.h"

namespace tangram::device {

class CudaContext;

// The end of the work that was on a stream when it was recorded.
class CudaEvent final : public Event::State {
 public:
  // Recorded on the stream; the calling thread is in the context.
  static Result<std::shared_ptr<const CudaEvent>> Record(std::shared_ptr<CudaContext> context,
                                                         CUstream stream);
  CudaEvent(std::shared_ptr<CudaContext> context, CUevent event);
  ~CudaEvent() override;
  bool Done() const override;
  // kInternal: some earlier work failed, and with it all of the process's work on that GPU.
  Status Wait() const override;

 private:
  const std::shared_ptr<CudaContext> context_;
  const CUevent event_;
};

// A range of addresses.
struct AddressRange {
  uint64_t begin = 0, end = 0;
};

// All addresses that a memory may have: for units of a slab, those of the slab.
AddressRange RangeOf(const Memory& memory);

// Unmapping memory that a running copy uses is undefined, and the driver does not detect it. So
// every unmap waits here first. Thread-safe.
class CudaWork {
 public:
  void Add(CUstream stream, std::vector<AddressRange> uses, std::shared_ptr<const CudaEvent> event);
  // Until no work uses any of these addresses, whether it succeeded or failed.
  void WaitFor(AddressRange range);
  // Called for a stream that is destroyed, after its work is done.
  void Forget(CUstream stream);

 private:
  struct Entry {
    CUstream stream = nullptr;
    std::vector<AddressRange> uses;
    std::shared_ptr<const CudaEvent> event;
  };
  std::mutex mu_;
  std::vector<Entry> entries_;
};

}  // namespace tangram::device
