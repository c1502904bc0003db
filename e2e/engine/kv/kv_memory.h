// The KV region of this rank as the CPU computes with it: in place where it reaches the region,
// else a mirror of pages on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/device.h"

namespace tangram::engine {

// A page comes to the mirror when a step first uses it in an epoch, and goes back at the end of
// each step that wrote it: at a boundary the region holds all that was computed, so that others may
// be given it, and what they put there is seen.
class KvMemory {
 public:
  struct Pages {
    uint32_t first = 0, count = 0;
  };
  // Of bytes of the region.
  struct Move {
    uint64_t to = 0, from = 0, length = 0;
  };

  // `device` outlives this; the region is mapped for reading and writing.
  KvMemory(device::Device* device, void* region, uint64_t bytes, uint64_t page_bytes);

  // Where page 0 lies for the CPU; the others follow it.
  void* base() const { return mirror_ != nullptr ? mirror_.get() : region_; }
  // Before a step: brings what the mirror lacks of these, by one batch.
  Status Bring(std::span<const Pages> pages);
  // These are written by the step that goes on.
  void Write(Pages pages);
  // After it: what it wrote is in the region when this returns, by one batch.
  Status Flush();
  // Others wrote to the region, or a step was given up: the mirror is nothing any more.
  void Forget();
  // Copies within the region, apart from each other; what the mirror has of the targets is old.
  Status Copy(std::span<const Move> moves);

 private:
  enum State : uint8_t { kAbsent, kSame, kWritten };

  device::Memory In(uint64_t offset, uint64_t bytes) const;
  // Copies of all pages that are marked, side by side as one.
  Status CopyMarked(const std::vector<bool>& marked, bool to_region);

  device::Device* const device_;
  void* const region_;
  const uint64_t page_bytes_;
  std::unique_ptr<std::byte[]> mirror_;  // null: the CPU reaches the region
  std::vector<State> states_;            // [pages] of the mirror
};

}  // namespace tangram::engine
