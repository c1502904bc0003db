// The free bytes of a device: runs, in order. Pure bookkeeping, the same for every backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/device.h"

namespace tangram::device {

// Thread-safe. Shared with every block, so that a block that outlives its device can still return
// its bytes.
class Arena {
 public:
  // All of `bytes` (a multiple of `unit`) is free.
  Arena(uint64_t bytes, uint64_t unit);
  // All but these are free; `used` has any order. Sorts once, where claims would search for each.
  // kInvalid: not in units, not inside, or some byte twice.
  static Result<std::unique_ptr<Arena>> Without(uint64_t bytes, uint64_t unit,
                                                std::vector<Extent> used);

  uint64_t bytes() const { return bytes_; }
  uint64_t unit() const { return unit_; }
  uint64_t free_bytes() const;

  // Takes the smallest run that fits, else runs from the front; log n in the free runs for each run
  // taken. kInvalid: not in units. kNoMemory, with the numbers: takes nothing.
  Result<std::vector<Extent>> Take(uint64_t bytes);
  // Takes exactly these, all of them or none. kInvalid: not in units, or some byte is not free.
  Status Claim(std::span<const Extent> extents);
  void Give(std::span<const Extent> extents);

 private:
  using Runs = std::map<uint64_t, uint64_t>;  // offset -> length
  void GiveLocked(std::span<const Extent> extents);
  bool ClaimLocked(const Extent& extent);
  void Insert(uint64_t offset, uint64_t length);
  void Erase(Runs::iterator run);

  uint64_t bytes_;
  const uint64_t unit_;
  mutable std::mutex mu_;
  Runs free_;
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // the same runs, (length, offset)
  uint64_t free_bytes_;
};

// Bytes taken from an arena; the destructor returns them.
class ArenaBlock : public Block {
 public:
  ArenaBlock(std::shared_ptr<Arena> arena, std::vector<Extent> extents);
  ~ArenaBlock() override;
  uint64_t bytes() const override { return bytes_; }
  std::span<const Extent> extents() const { return extents_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::vector<Extent> extents_;
  uint64_t bytes_ = 0;
};

// Calls `use(extent)` for the parts of `extents` that a slice covers, in order, until one call
// returns false.
template <typename Use>
bool EachOf(std::span<const Extent> extents, Slice slice, Use&& use) {
  for (const Extent& extent : extents) {
    if (slice.bytes == 0) break;
    if (slice.offset >= extent.length) {
      slice.offset -= extent.length;
      continue;
    }
    const uint64_t length = std::min(slice.bytes, extent.length - slice.offset);
    if (!use(Extent{extent.offset + slice.offset, length, extent.descriptor})) return false;
    slice = {0, slice.bytes - length};
  }
  return true;
}

}  // namespace tangram::device
