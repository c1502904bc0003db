#include "agent/mover/peer_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tangram::mover {
namespace {

// Mapping unit, where parts can be mapped: so large that a call costs little next to the pages, and
// equal to a huge page.
constexpr uint64_t kChunk = 2 << 20;
// Bounds of the other process's claims, which cost memory here.
constexpr uint64_t kMostDescriptors = 1 << 20, kMostChunks = 1 << 26;

}  // namespace

Result<std::shared_ptr<PeerMemory>> PeerMemory::Of(std::unique_ptr<device::Device> importer,
                                                   uint64_t bytes, uint64_t unit) {
  std::shared_ptr<PeerMemory> out(new PeerMemory);
  const uint64_t granularity = importer->granularity();
  if (bytes == 0 || unit == 0 || unit % granularity != 0 || bytes / unit >= kMostDescriptors ||
      bytes / granularity >= kMostChunks) {
    return Status(Code::kInvalid, fmt::format("invalid export of {} bytes in descriptors of {} "
                                              "bytes: this agent maps multiples of {} bytes",
                                              bytes, unit, granularity));
  }
  const uint64_t chunk = (kChunk + granularity - 1) / granularity * granularity;
  const bool in_parts = importer->maps_parts() && (bytes <= unit || unit % chunk == 0);
  out->bytes_ = bytes;
  out->unit_ = unit;
  out->chunk_ = in_parts ? chunk : unit;
  auto space = importer->Reserve(bytes);
  if (!space.ok()) return space.status();
  out->device_ = std::move(importer);
  out->space_ = std::move(space).value();
  out->here_.assign((bytes + out->chunk_ - 1) / out->chunk_, false);
  return out;
}

Status PeerMemory::Inside(const device::Extent& extent) const {
  if (extent.offset <= bytes_ && extent.length <= bytes_ - extent.offset) return OkStatus();
  return {Code::kInvalid,
          fmt::format("{} bytes at offset {} exceed the exported memory of {} bytes", extent.length,
                      extent.offset, bytes_)};
}

Result<std::vector<uint64_t>> PeerMemory::Lacks(std::span<const device::Extent> extents) const {
  std::vector<uint64_t> out;
  const std::scoped_lock lock(mu_);
  for (const device::Extent& extent : extents) {
    TANGRAM_RETURN_IF_ERROR(Inside(extent));
    const uint64_t end = extent.offset + extent.length;
    for (uint64_t n = extent.offset / unit_; n * unit_ < end; ++n) {
      if (!given_.contains(n)) out.push_back(n);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status PeerMemory::Give(uint64_t number, int descriptor) {
  if (number >= (bytes_ + unit_ - 1) / unit_) {
    return {Code::kInvalid,
            fmt::format(
                "descriptor {} is out of range: {} bytes are exported in descriptors of {} bytes",
                number, bytes_, unit_)};
  }
  {
    const std::scoped_lock lock(mu_);
    if (given_.contains(number)) return OkStatus();
  }
  const device::Extent all{0, std::min(unit_, bytes_ - number * unit_)};
  auto block = device_->Import(descriptor, {&all, 1});
  if (!block.ok()) return block.status();
  const std::scoped_lock lock(mu_);
  given_.emplace(number, std::move(block).value());
  return OkStatus();
}

Status PeerMemory::AddLocked(const device::Extent& extent,
                             std::vector<device::Placement>* placements) {
  TANGRAM_RETURN_IF_ERROR(Inside(extent));
  const uint64_t end = (extent.offset + extent.length + chunk_ - 1) / chunk_;
  for (uint64_t c = extent.offset / chunk_; c < end; ++c) {
    if (here_[c]) continue;
    const uint64_t at = c * chunk_, number = at / unit_;
    const auto block = given_.find(number);
    if (block == given_.end()) {
      return {Code::kInvalid,
              fmt::format("byte {} is in descriptor {}, which was not received", at, number)};
    }
    while (c + 1 < end && !here_[c + 1] && (c + 1) * chunk_ / unit_ == number) here_[c++] = true;
    here_[c] = true;
    const uint64_t bytes = std::min((c + 1) * chunk_, bytes_) - at;
    placements->push_back({at, block->second, {at - number * unit_, bytes}});
  }
  return OkStatus();
}

Status PeerMemory::MapLocked(std::span<const device::Placement> placements) {
  if (placements.empty()) return OkStatus();
  auto mapped = device_->Map(space_, placements, device::Access::kRead);
  if (!mapped.ok()) {
    for (const device::Placement& p : placements) {
      const auto first = here_.begin() + static_cast<int64_t>(p.at / chunk_);
      std::fill_n(first, (p.slice.bytes + chunk_ - 1) / chunk_, false);
    }
    return mapped.status();
  }
  std::move(mapped->begin(), mapped->end(), std::back_inserter(mappings_));
  return OkStatus();
}

Status PeerMemory::Prepare(std::span<const device::Extent> extents) {
  if (device_->maps_parts()) return OkStatus();
  const std::scoped_lock lock(mu_);
  std::vector<device::Placement> placements;
  Status status;
  for (const device::Extent& extent : extents) {
    if (status.ok()) status = AddLocked(extent, &placements);
  }
  Status mapped = MapLocked(placements);
  return status.ok() ? mapped : status;
}

Result<device::Memory> PeerMemory::At(const device::Extent& extent) {
  const std::scoped_lock lock(mu_);
  std::vector<device::Placement> placements;
  const Status status = AddLocked(extent, &placements);
  TANGRAM_RETURN_IF_ERROR(MapLocked(placements));  // including those before an error
  if (!status.ok()) return status;
  return device::Memory{device_.get(), space_->address() + extent.offset, extent.length};
}

}  // namespace tangram::mover
