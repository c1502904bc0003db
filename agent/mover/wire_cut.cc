#include "agent/mover/wire_cut.h"

#include <fmt/format.h>

#include <algorithm>

namespace tangram::mover {

Result<Cut> CutFor(std::span<const device::Memory> memories, uint64_t most) {
  Cut out;
  uint64_t open = 0;  // bytes of the message being filled
  const auto close = [&] {
    if (open > 0) out.push_back(std::exchange(open, 0));
  };
  for (const device::Memory& memory : memories) {
    const uint64_t unit = memory.shape != nullptr ? memory.shape->unit_bytes() : 1;
    if (unit > most) {
      return Status(
          Code::kUnavailable,
          fmt::format("a unit of {} bytes exceeds the comm message size of {} bytes", unit, most));
    }
    if (memory.bytes > most - open) close();
    for (uint64_t left = memory.bytes; left > 0;) {
      const uint64_t part = std::min(left, (most - open) / unit * unit);
      open += part;
      left -= part;
      if (left > 0) close();
    }
  }
  close();
  return out;
}

Result<std::vector<CutWalk::Part>> CutWalk::Next(uint64_t bytes) {
  std::vector<Part> out;
  for (uint64_t at = 0; at < bytes;) {
    while (memory_ < memories_.size() && offset_ == memories_[memory_].bytes) {
      ++memory_;
      offset_ = 0;
    }
    if (memory_ == memories_.size()) {
      return Status(
          Code::kInvalid,
          fmt::format("comm message of {} bytes, but only {} bytes are available", bytes, at));
    }
    const device::Memory& memory = memories_[memory_];
    const uint64_t part = std::min(bytes - at, memory.bytes - offset_);
    if (memory.shape != nullptr && part % memory.shape->unit_bytes() != 0) {
      return Status(Code::kInvalid, fmt::format("comm message splits a unit of {} bytes",
                                                memory.shape->unit_bytes()));
    }
    out.push_back({memory_, offset_, memory.Part(offset_, part), at});
    offset_ += part;
    at += part;
  }
  while (memory_ < memories_.size() && offset_ == memories_[memory_].bytes) {
    ++memory_;
    offset_ = 0;
  }
  return out;
}

}  // namespace tangram::mover
