// Bytes that the CPU computes with, wherever their memory is: where it reaches them they stay
// there, else they are copied to the host once, and kept.
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
  // Mapped memory of the device, by its addresses (tg_piece.data, tg_tensor.data).
  struct Range {
    const void* at = nullptr;
    uint64_t bytes = 0;
    auto operator<=>(const Range&) const = default;
  };

  // `device` outlives the reader.
  explicit Reader(device::Device* device) : device_(device) {}

  // Where each of the ranges can be read, in their order, until Forget. What is not kept yet is
  // copied by one batch. An error is the device's: nothing of the batch is kept then.
  Result<std::vector<const void*>> Read(std::span<const Range> ranges);
  // The memory has other bytes now, or none.
  void Forget() { kept_.clear(); }
  uint64_t kept_bytes() const;

 private:
  device::Device* const device_;
  std::map<Range, std::vector<std::byte>> kept_;
};

}  // namespace tangram::engine
