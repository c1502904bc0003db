#include "agent/mover/peer_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace tangram::mover {
namespace {

// Mapped at once: enough that calls cost little beside pages, and a huge page.
constexpr uint64_t kChunk = 2 << 20;

}  // namespace

Result<std::shared_ptr<PeerMemory>> PeerMemory::Open(const device::Platform& platform,
                                                     int descriptor, uint64_t bytes) {
  std::shared_ptr<PeerMemory> out(new PeerMemory);
  out->device_ = std::move(platform.Importers().weights);
  out->bytes_ = bytes;
  const uint64_t unit = out->device_->granularity();
  out->chunk_ = (kChunk + unit - 1) / unit * unit;
  const device::Extent all{0, bytes};
  auto block = out->device_->Import(descriptor, {&all, 1});
  if (!block.ok()) return block.status();
  out->block_ = std::move(block).value();
  auto space = out->device_->Reserve(bytes);
  if (!space.ok()) return space.status();
  out->space_ = std::move(space).value();
  out->here_.assign((bytes + out->chunk_ - 1) / out->chunk_, false);
  return out;
}

Result<device::Memory> PeerMemory::At(const device::Extent& extent) {
  if (extent.offset > bytes_ || extent.length > bytes_ - extent.offset) {
    return Status(Code::kInvalid, fmt::format("{} bytes at {} of memory of {}", extent.length,
                                              extent.offset, bytes_));
  }
  const std::scoped_lock lock(mu_);
  const uint64_t end = (extent.offset + extent.length + chunk_ - 1) / chunk_;
  for (uint64_t c = extent.offset / chunk_; c < end; ++c) {
    if (here_[c]) continue;
    const uint64_t first = c;
    while (c + 1 < end && !here_[c + 1]) ++c;
    const uint64_t at = first * chunk_;
    const device::Placement placement{at, block_, {at, std::min((c + 1) * chunk_, bytes_) - at}};
    auto mapped = device_->Map(space_, {&placement, 1}, device::Access::kRead);
    if (!mapped.ok()) return mapped.status();
    mappings_.push_back(std::move(mapped->front()));
    std::fill(here_.begin() + static_cast<int64_t>(first),
              here_.begin() + static_cast<int64_t>(c) + 1, true);
  }
  return device::Memory{device_.get(), space_->address() + extent.offset, extent.length};
}

}  // namespace tangram::mover
