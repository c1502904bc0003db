#include "agent/dispatch/gpu/device_memory.h"

#include <algorithm>

namespace tangram::dispatch {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<DeviceMemory> DeviceMemory::Make(device::Device& device, uint64_t bytes) {
  DeviceMemory out;
  out.bytes_ = RoundUp(bytes, device.granularity());
  auto block = device.Create(out.bytes_);
  if (!block.ok()) return block.status();
  out.blocks_.push_back(std::move(block).value());
  auto space = device.Reserve(out.bytes_);
  if (!space.ok()) return space.status();
  out.space_ = std::move(space).value();
  const device::Placement placement{0, out.blocks_.front(), {0, out.bytes_}};
  auto mapped = device.Map(out.space_, {&placement, 1}, device::Access::kReadWrite);
  if (!mapped.ok()) return mapped.status();
  out.mapped_ = std::move(mapped).value();
  return out;
}

Result<DeviceMemory> DeviceMemory::Import(device::Device& importer, const device::Export& from) {
  DeviceMemory out;
  std::vector<device::Placement> placements;
  for (const device::Extent& extent : from.extents) {
    auto block = importer.Import(from.descriptors[extent.descriptor]->get(), {&extent, 1});
    if (!block.ok()) return block.status();
    placements.push_back({out.bytes_, *block, {0, extent.length}});
    out.bytes_ += extent.length;
    out.blocks_.push_back(std::move(block).value());
  }
  auto space = importer.Reserve(out.bytes_);
  if (!space.ok()) return space.status();
  out.space_ = std::move(space).value();
  auto mapped = importer.Map(out.space_, placements, device::Access::kReadWrite);
  if (!mapped.ok()) return mapped.status();
  out.mapped_ = std::move(mapped).value();
  return out;
}

Status Upload(device::Queue& queue, uint64_t to, const void* from, uint64_t bytes) {
  TANGRAM_RETURN_IF_ERROR(queue.Copy(to, reinterpret_cast<uint64_t>(from), bytes));
  return queue.Wait();
}

Status Download(device::Queue& queue, uint64_t from, void* to, uint64_t bytes) {
  TANGRAM_RETURN_IF_ERROR(queue.Copy(reinterpret_cast<uint64_t>(to), from, bytes));
  return queue.Wait();
}

Status Clear(device::Queue& queue, uint64_t at, uint64_t bytes) {
  const std::vector<std::byte> zeros(std::min<uint64_t>(bytes, 1 << 20));
  for (uint64_t done = 0; done < bytes; done += zeros.size())
    TANGRAM_RETURN_IF_ERROR(queue.Copy(at + done, reinterpret_cast<uint64_t>(zeros.data()),
                                       std::min<uint64_t>(zeros.size(), bytes - done)));
  return queue.Wait();
}

}  // namespace tangram::dispatch
