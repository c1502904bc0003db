// The mapped addresses of a space. Pure bookkeeping, the same for every backend.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "agent/device/device.h"

namespace tangram::device {

// Thread-safe; log n in the mappings.
class Occupancy {
 public:
  Occupancy(uint64_t bytes, uint64_t unit) : bytes_(bytes), unit_(unit) {}

  uint64_t bytes() const { return bytes_; }
  // Takes all of the placements or none. kInvalid: outside, not in units, or partly taken.
  Status Take(std::span<const Placement> placements);
  // Removes all entries there, and cuts those that extend beyond.
  void Drop(uint64_t at, uint64_t bytes);

 private:
  bool TakeLocked(uint64_t at, uint64_t bytes);
  void DropLocked(uint64_t at, uint64_t bytes);

  const uint64_t bytes_, unit_;
  std::mutex mu_;
  std::map<uint64_t, uint64_t> taken_;  // from -> to
};

}  // namespace tangram::device
