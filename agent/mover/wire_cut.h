// How memory that is brought over a wire is cut into messages, and what of it each has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/mover/wire_talk.h"

namespace tangram::mover {

// Messages of at most so many bytes for these memories, in order. A memory that fits goes whole;
// units of a slab are never cut. kUnavailable: one is larger than a message can be.
Result<Cut> CutFor(std::span<const device::Memory> memories, uint64_t most);

// Walks memories message by message.
class CutWalk {
 public:
  struct Part {
    size_t memory = 0;        // which
    uint64_t offset = 0;      // in it
    device::Memory part;      // of it
    uint64_t in_message = 0;  // where in the message
  };
  explicit CutWalk(std::span<const device::Memory> memories) : memories_(memories) {}
  // What the next message of so many bytes has. kInvalid: there are not so many left, or a unit of
  // a slab is cut.
  Result<std::vector<Part>> Next(uint64_t bytes);
  bool over() const { return memory_ == memories_.size(); }

 private:
  const std::span<const device::Memory> memories_;
  size_t memory_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace tangram::mover
