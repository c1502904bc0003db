// Bytes for CPU computation: in place if the CPU can reach the memory, else copied to the host
// once, and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/device.h"

namespace tangram::engine {

class Reader {
 public:
  // Mapped memory of the device, by address (tg_piece.data, tg_tensor.data).
  struct Range {
    const void* at = nullptr;
    uint64_t bytes = 0;
    auto operator<=>(const Range&) const = default;
  };

  // `device` must outlive the reader.
  explicit Reader(device::Device* device) : device_(device) {}

  // A readable address for each of the ranges, in order, valid until Forget. Ranges without a copy
  // are copied in one batch. An error comes from the device; then nothing of the batch is kept.
  Result<std::vector<const void*>> Read(std::span<const Range> ranges);
  // Call it when the memory has changed or is unmapped.
  void Forget() { kept_.clear(); }
  uint64_t kept_bytes() const;

 private:
  device::Device* const device_;
  std::map<Range, std::vector<std::byte>> kept_;
};

}  // namespace tangram::engine
