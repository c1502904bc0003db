#include "agent/device/cuda_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace tangram::device {

Result<std::shared_ptr<CudaSpace>> CudaSpace::Reserve(std::shared_ptr<CudaContext> context,
                                                      uint64_t bytes, uint64_t unit) {
  const CudaDriver& driver = context->driver();
  const CudaContext::Entered in(*context);
  CUdeviceptr address = 0;
  TANGRAM_RETURN_IF_ERROR(driver.Check(driver.MemAddressReserve(&address, bytes, 0, 0, 0),
                                       fmt::format("reserving {} bytes of addresses", bytes)));
  return std::make_shared<CudaSpace>(std::move(context), address, bytes, unit);
}

CudaSpace::~CudaSpace() {
  const CudaContext::Entered in(*context_);
  (void)context_->driver().MemAddressFree(address_, bytes());
}

Status CudaSpace::UnmapHandle(uint64_t at, uint64_t bytes) {
  const CudaDriver& driver = context_->driver();
  return driver.Check(driver.MemUnmap(address_ + at, bytes),
                      fmt::format("unmapping {} bytes at {}", bytes, at));
}

Status CudaSpace::MapHandles(std::span<const CudaRun> runs) {
  const CudaDriver& driver = context_->driver();
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& [at, handle] = runs[i];
    const Status status =
        driver.Check(driver.MemMap(address_ + at, handle->bytes(), 0, handle->get(), 0),
                     fmt::format("mapping a handle of {} bytes at {} of a space of {}",
                                 handle->bytes(), at, bytes()));
    if (status.ok()) continue;
    for (const CudaRun& done : runs.first(i)) (void)UnmapHandle(done.at, done.handle->bytes());
    return status;
  }
  return OkStatus();
}

Status CudaSpace::SetAccess(std::span<const CudaRun> runs, Access access) {
  std::vector<AddressRange> stretches;
  for (const auto& [at, handle] : runs) stretches.push_back({at, at + handle->bytes()});
  std::sort(stretches.begin(), stretches.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  CUmemAccessDesc desc{};
  desc.location = context_->properties().location;
  desc.flags =
      access == Access::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CudaDriver& driver = context_->driver();
  for (size_t i = 0; i < stretches.size();) {
    AddressRange range = stretches[i];
    while (++i < stretches.size() && stretches[i].begin == range.end) range.end = stretches[i].end;
    const uint64_t bytes = range.end - range.begin;
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.MemSetAccess(address_ + range.begin, bytes, &desc, 1),
                     fmt::format("access to {} bytes at {}", bytes, range.begin)));
  }
  return OkStatus();
}

Status CudaSpace::Map(std::span<const Placement> placements, std::span<const CudaRun> runs,
                      Access access) {
  if (Status taken = occupancy_.Take(placements); !taken.ok()) {
    return {taken.code(), "cuda device: " + taken.message()};
  }
  const std::scoped_lock lock(mu_);
  const CudaContext::Entered in(*context_);
  Status status = MapHandles(runs);
  if (status.ok()) {
    status = SetAccess(runs, access);
    if (!status.ok()) {
      for (const auto& [at, handle] : runs) (void)UnmapHandle(at, handle->bytes());
    }
  }
  if (!status.ok()) {
    for (const Placement& p : placements) occupancy_.Drop(p.at, p.slice.bytes);
    return status;
  }
  for (const auto& [at, handle] : runs) mapped_[at] = {handle, handle->bytes()};
  return OkStatus();
}

bool CudaSpace::Unmap(uint64_t at, uint64_t bytes) {
  const uint64_t end = at + bytes;
  context_->work().WaitFor({address_ + at, address_ + end});
  const std::scoped_lock lock(mu_);
  const CudaContext::Entered in(*context_);
  auto it = mapped_.upper_bound(at);
  if (it != mapped_.begin()) --it;
  while (it != mapped_.end() && it->first < end) {
    const uint64_t begin = it->first, size = it->second.handle->bytes();
    const uint64_t from = std::max(at, begin), to = std::min(end, begin + size);
    if (from >= to) {
      ++it;
      continue;
    }
    it->second.left -= to - from;
    // If the driver does not unmap a handle, its addresses and memory stay reserved. That happens
    // after a failed kernel or copy, when the process has to end anyway.
    if (it->second.left > 0 || !UnmapHandle(begin, size).ok()) {
      ++it;
      continue;
    }
    occupancy_.Drop(begin, size);
    it = mapped_.erase(it);
  }
  return true;
}

}  // namespace tangram::device
