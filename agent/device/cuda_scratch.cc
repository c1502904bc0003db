#include "agent/device/cuda_scratch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tangram::device {

Result<std::unique_ptr<CudaScratch>> CudaScratch::Make(std::shared_ptr<const CudaDriver> driver) {
  std::unique_ptr<CudaScratch> out(new CudaScratch(std::move(driver)));
  for (Slot& slot : out->slots_) {
    TANGRAM_RETURN_IF_ERROR(out->Grow(&slot, kBytes, kMirrored));
    TANGRAM_RETURN_IF_ERROR(out->driver_->Check(
        out->driver_->EventCreate(&slot.event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
        "an event"));
  }
  return out;
}

CudaScratch::~CudaScratch() {
  for (Slot& slot : slots_) {
    if (const auto answer = slot.answer.lock()) answer->Keep();
    Free(&slot);
    if (slot.event != nullptr) (void)driver_->EventDestroy(slot.event);
  }
}

Status CudaScratch::Lease::Until(CUstream stream, const std::shared_ptr<CudaAnswer>& answer) {
  TANGRAM_RETURN_IF_ERROR(
      driver_->Check(driver_->EventRecord(slot_->event, stream), "recording an event"));
  slot_->answer = answer;
  return OkStatus();
}

void CudaScratch::Free(Slot* slot) {
  if (slot->device != 0) (void)driver_->MemFree(slot->device);
  if (slot->host != nullptr) (void)driver_->MemFreeHost(slot->host);
  slot->device = 0;
  slot->host = nullptr;
  slot->bytes = slot->mirrored = 0;
}

Status CudaScratch::Grow(Slot* slot, uint64_t bytes, uint64_t mirrored) {
  if (bytes <= slot->bytes && mirrored <= slot->mirrored) return OkStatus();
  // At least doubled, so it does not grow for each operation that is slightly larger than the last.
  if (bytes > slot->bytes) bytes = std::max(bytes, 2 * slot->bytes);
  if (mirrored > slot->mirrored) mirrored = std::max(mirrored, 2 * slot->mirrored);
  bytes = std::max(bytes, slot->bytes);
  mirrored = std::max(mirrored, slot->mirrored);
  Free(slot);
  Status status = driver_->Check(driver_->MemAlloc(&slot->device, bytes),
                                 fmt::format("scratch of {} bytes for kernels", bytes));
  if (status.ok()) {
    slot->bytes = bytes;
    status = driver_->Check(driver_->MemHostAlloc(&slot->host, mirrored, 0),
                            fmt::format("{} bytes of pinned memory for kernels", mirrored));
  }
  if (status.ok()) {
    slot->mirrored = mirrored;
    return OkStatus();
  }
  Free(slot);
  return status;
}

Result<CudaScratch::Lease> CudaScratch::Take(uint64_t bytes, uint64_t mirrored) {
  Lease out;
  out.lock_ = std::unique_lock(mu_);
  out.driver_ = driver_.get();
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  // An error of the slot's last user is reported to that user, not here.
  (void)driver_->EventSynchronize(slot.event);
  if (const auto answer = slot.answer.lock()) answer->Keep();
  slot.answer.reset();
  TANGRAM_RETURN_IF_ERROR(Grow(&slot, bytes, mirrored));
  out.slot_ = &slot;
  return out;
}

}  // namespace tangram::device
