// The KV region of this rank for CPU access: in place if the CPU can reach the region, else through
// a mirror of pages on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/device.h"

namespace tangram::engine {

// A page is copied to the mirror when a step first uses it in an epoch, and copied back at the end
// of each step that wrote it. So at a step boundary the region holds all computed KV: peers can
// fetch it, and their writes are seen.
class KvMemory {
 public:
  struct Pages {
    uint32_t first = 0, count = 0;
  };
  // Byte ranges of the region.
  struct Move {
    uint64_t to = 0, from = 0, length = 0;
  };

  // `device` must outlive this; the region is mapped for reading and writing.
  KvMemory(device::Device* device, void* region, uint64_t bytes, uint64_t page_bytes);

  // Address of page 0 for the CPU; the other pages follow it.
  void* base() const { return mirror_ != nullptr ? mirror_.get() : region_; }
  // Before a step: copies the pages that the mirror lacks, in one batch.
  Status Bring(std::span<const Pages> pages);
  // The running step writes these pages.
  void Write(Pages pages);
  // After a step: copies the written pages to the region, in one batch, before it returns.
  Status Flush();
  // Invalidates the mirror: peers wrote to the region, or a step was abandoned.
  void Forget();
  // Copies within the region, without overlap; invalidates the mirror's copy of the targets.
  Status Copy(std::span<const Move> moves);

 private:
  enum State : uint8_t { kAbsent, kSame, kWritten };

  device::Memory In(uint64_t offset, uint64_t bytes) const;
  // Copies all marked pages, adjacent ones as one range.
  Status CopyMarked(const std::vector<bool>& marked, bool to_region);

  device::Device* const device_;
  void* const region_;
  const uint64_t page_bytes_;
  std::unique_ptr<std::byte[]> mirror_;  // null: the CPU can reach the region
  std::vector<State> states_;            // [pages] of the mirror
};

}  // namespace tangram::engine
