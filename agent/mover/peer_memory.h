// Memory of another process of this machine, mapped for reading as far as somebody reads it.
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
  // `bytes`, which the other process shows by descriptors of `unit` bytes each (Readable).
  // kInvalid: there can be no such memory.
  static Result<std::shared_ptr<PeerMemory>> Of(std::unique_ptr<device::Device> importer,
                                                uint64_t bytes, uint64_t unit);

  // Numbers of the descriptors that these bytes lie in, in order, and that were not given yet.
  // kInvalid: they do not lie in it.
  Result<std::vector<uint64_t>> Lacks(std::span<const device::Extent> extents) const;
  // kInvalid: it is not memory that the importer maps, or could be taken away while it is read.
  Status Give(uint64_t number, int descriptor);

  // Maps them where memory is mapped whole anyway, at once for all; elsewhere At does, part by
  // part.
  Status Prepare(std::span<const device::Extent> extents);
  // These bytes, mapped, for as long as this lives. kInvalid: they do not lie in it, or what they
  // lie in was not given.
  Result<device::Memory> At(const device::Extent& extent);

 private:
  PeerMemory() = default;
  Status Inside(const device::Extent& extent) const;
  // Adds what is not mapped yet of the chunks that the bytes lie in.
  Status AddLocked(const device::Extent& extent, std::vector<device::Placement>* placements);
  Status MapLocked(std::span<const device::Placement> placements);

  std::unique_ptr<device::Device> device_;
  uint64_t bytes_ = 0, unit_ = 0, chunk_ = 0;  // mapped in multiples of `chunk_`
  device::SpacePtr space_;
  mutable std::mutex mu_;                       // everything below
  std::map<uint64_t, device::BlockPtr> given_;  // by number
  std::vector<bool> here_;                      // by chunk
  std::vector<device::Mapping> mappings_;
};

}  // namespace tangram::mover
