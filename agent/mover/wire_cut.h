// Cuts memory that is sent over a comm channel into messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/mover/wire_talk.h"

namespace tangram::mover {

// Cuts these memories, in order, into messages of at most `most` bytes. Memory that fits in a
// message is not cut, and units of a slab never are. kUnavailable: one is larger than a message can
// be.
Result<Cut> CutFor(std::span<const device::Memory> memories, uint64_t most);

// Walks memories message by message.
class CutWalk {
 public:
  struct Part {
    size_t memory = 0;        // index of the memory
    uint64_t offset = 0;      // within the memory
    device::Memory part;      // of the memory
    uint64_t in_message = 0;  // offset in the message
  };
  explicit CutWalk(std::span<const device::Memory> memories) : memories_(memories) {}
  // The parts of the next message, of `bytes` bytes. kInvalid: fewer bytes are left, or it would
  // cut a unit of a slab.
  Result<std::vector<Part>> Next(uint64_t bytes);
  bool over() const { return memory_ == memories_.size(); }

 private:
  const std::span<const device::Memory> memories_;
  size_t memory_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace tangram::mover
