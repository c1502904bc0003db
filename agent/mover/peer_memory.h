// Memory of another process of this machine, mapped for reading where it is read.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "agent/device/device.h"

namespace tangram::mover {

// Thread-safe.
class PeerMemory {
 public:
  // `bytes` of memory, which the other process exports as descriptors of `unit` bytes each
  // (Readable). kInvalid: such memory cannot exist.
  static Result<std::shared_ptr<PeerMemory>> Of(std::unique_ptr<device::Device> importer,
                                                uint64_t bytes, uint64_t unit);

  // Numbers of the descriptors for these bytes, in order, that were not given yet. kInvalid: the
  // bytes are outside the memory.
  Result<std::vector<uint64_t>> Lacks(std::span<const device::Extent> extents) const;
  // kInvalid: the importer cannot map it, or its owner could remove it during a read.
  Status Give(uint64_t number, int descriptor);

  // Maps all descriptors of the extents, if they are mapped as a whole. Otherwise At maps part by
  // part.
  Status Prepare(std::span<const device::Extent> extents);
  // These bytes, mapped during the lifetime of this object. kInvalid: they are outside the memory,
  // or their descriptor was not given.
  Result<device::Memory> At(const device::Extent& extent);

 private:
  PeerMemory() = default;
  Status Inside(const device::Extent& extent) const;
  // Adds the unmapped chunks of these bytes.
  Status AddLocked(const device::Extent& extent, std::vector<device::Placement>* placements);
  Status MapLocked(std::span<const device::Placement> placements);

  std::unique_ptr<device::Device> device_;
  uint64_t bytes_ = 0, unit_ = 0, chunk_ = 0;  // mapped in multiples of `chunk_`
  device::SpacePtr space_;
  mutable std::mutex mu_;                       // guards the members below
  std::map<uint64_t, device::BlockPtr> given_;  // by number
  std::vector<bool> here_;                      // by chunk
  std::vector<device::Mapping> mappings_;
};

}  // namespace tangram::mover
