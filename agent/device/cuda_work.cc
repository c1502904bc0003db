#include "agent/device/cuda_work.h"

#include <algorithm>
#include <utility>

#include "agent/device/cuda_context.h"

namespace tangram::device {

AddressRange RangeOf(const Memory& memory) {
  uint64_t bytes = memory.bytes;
  if (memory.shape != nullptr) bytes = memory.shape->units * memory.shape->unit_bytes();
  return {memory.address, memory.address + bytes};
}

CudaEvent::CudaEvent(std::shared_ptr<CudaContext> context, CUevent event)
    : context_(std::move(context)), event_(event) {}

CudaEvent::~CudaEvent() {
  const CudaContext::Entered in(*context_);
  (void)context_->driver().EventDestroy(event_);
}

Result<std::shared_ptr<const CudaEvent>> CudaEvent::Record(std::shared_ptr<CudaContext> context,
                                                           CUstream stream) {
  const CudaDriver& driver = context->driver();
  CUevent event = nullptr;
  // Waiting threads sleep: the engine needs the processors.
  TANGRAM_RETURN_IF_ERROR(driver.Check(
      driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC), "an event"));
  auto out = std::make_shared<const CudaEvent>(std::move(context), event);
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.EventRecord(event, stream), "recording an event"));
  return out;
}

bool CudaEvent::Done() const {
  const CudaContext::Entered in(*context_);
  return context_->driver().EventQuery(event_) != CUDA_ERROR_NOT_READY;
}

Status CudaEvent::Wait() const {
  const CudaContext::Entered in(*context_);
  const CudaDriver& driver = context_->driver();
  return driver.Check(driver.EventSynchronize(event_), "work on " + context_->name());
}

void CudaWork::Add(CUstream stream, std::vector<AddressRange> uses,
                   std::shared_ptr<const CudaEvent> event) {
  const std::scoped_lock lock(mu_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.event->Done(); });
  entries_.push_back({stream, std::move(uses), std::move(event)});
}

void CudaWork::WaitFor(AddressRange range) {
  std::vector<std::shared_ptr<const CudaEvent>> users;
  {
    const std::scoped_lock lock(mu_);
    for (const Entry& entry : entries_) {
      const bool uses = std::any_of(entry.uses.begin(), entry.uses.end(), [&](const auto& used) {
        return used.begin < range.end && range.begin < used.end;
      });
      if (uses) users.push_back(entry.event);
    }
  }
  for (const auto& event : users) (void)event->Wait();
}

void CudaWork::Forget(CUstream stream) {
  std::vector<Entry> gone;  // destroyed after the lock is released
  const std::scoped_lock lock(mu_);
  const auto first = std::partition(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.stream != stream; });
  std::move(first, entries_.end(), std::back_inserter(gone));
  entries_.erase(first, entries_.end());
}

}  // namespace tangram::device
