// What was given to a GPU and is not over: events, and the memory that they use.
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

// The end of what was put on a stream before it was recorded.
class CudaEvent final : public Event::State {
 public:
  // Recorded on the stream; the calling thread is in the context.
  static Result<std::shared_ptr<const CudaEvent>> Record(std::shared_ptr<CudaContext> context,
                                                         CUstream stream);
  CudaEvent(std::shared_ptr<CudaContext> context, CUevent event);
  ~CudaEvent() override;
  bool Done() const override;
  // kInternal: something before it failed, and with it all of the process's work on that GPU.
  Status Wait() const override;

 private:
  const std::shared_ptr<CudaContext> context_;
  const CUevent event_;
};

// Addresses.
struct AddressRange {
  uint64_t begin = 0, end = 0;
};

// All addresses that a memory may lie at: of units in a slab, those of the slab.
AddressRange RangeOf(const Memory& memory);

// Unmapping what a running copy uses is undefined, and the driver does not say so: whoever unmaps
// asks here first. Thread-safe.
class CudaWork {
 public:
  void Add(CUstream stream, std::vector<AddressRange> uses, std::shared_ptr<const CudaEvent> event);
  // Until nothing uses any of these addresses, well or not.
  void WaitFor(AddressRange range);
  // A stream that ends, with nothing left to do.
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
