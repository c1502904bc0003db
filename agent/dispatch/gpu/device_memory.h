// A range of a device's memory, at a fixed address during its lifetime.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/device.h"
#include "agent/device/queue.h"

namespace tangram::dispatch {

class DeviceMemory {
 public:
  // New memory of the device; kNoMemory with the numbers.
  static Result<DeviceMemory> Make(device::Device& device, uint64_t bytes);
  // Memory that another process exported, mapped for writing.
  static Result<DeviceMemory> Import(device::Device& importer, const device::Export& from);

  uint64_t at() const { return space_ == nullptr ? 0 : space_->address(); }
  uint64_t bytes() const { return bytes_; }
  const device::BlockPtr& block() const { return blocks_.front(); }

 private:
  std::vector<device::BlockPtr> blocks_;
  device::SpacePtr space_;
  std::vector<device::Mapping> mapped_;
  uint64_t bytes_ = 0;
};

// Both complete before they return.
Status Upload(device::Queue& queue, uint64_t to, const void* from, uint64_t bytes);
Status Download(device::Queue& queue, uint64_t from, void* to, uint64_t bytes);
Status Clear(device::Queue& queue, uint64_t at, uint64_t bytes);

template <typename T>
Result<std::vector<T>> DownloadList(device::Queue& queue, uint64_t from, uint64_t count) {
  std::vector<T> out(count);
  if (count > 0) TANGRAM_RETURN_IF_ERROR(Download(queue, from, out.data(), count * sizeof(T)));
  return out;
}

}  // namespace tangram::dispatch
