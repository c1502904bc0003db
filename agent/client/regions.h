// Address ranges of an engine, reserved once, so that a piece keeps its address while its bank is
// mapped. The agent names extents, which are mapped into them through the agent's devices
// (agent/device).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/device/device.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

using Extents = google::protobuf::RepeatedPtrField<v1::Extent>;

// Descriptors passed by the agent; extents refer to them by its numbers.
class DescriptorTable {
 public:
  struct Descriptor {
    UniqueFd fd;
    uint64_t bytes = 0;  // when it was added; 0: unknown, as for a GPU's handle
  };

  // A second descriptor under a number removes both, because the number is ambiguous.
  void Add(uint32_t number, UniqueFd fd);
  // Null: no such number.
  const Descriptor* Find(uint32_t number) const;
  void Close(uint32_t number) { descriptors_.erase(number); }
  const std::map<uint32_t, Descriptor>& all() const { return descriptors_; }

 private:
  std::map<uint32_t, Descriptor> descriptors_;
};

// One reserved range of addresses, inaccessible until it is mapped.
class Region {
 public:
  // A mapping at a place.
  struct Run {
    uint64_t place = 0, bytes = 0;
    uint32_t descriptor = 0;
    uint64_t offset = 0;  // in the descriptor
  };

  Region() = default;
  static Result<Region> Reserve(std::unique_ptr<device::Device> importer, uint64_t bytes,
                                device::Access access);

  // Maps the extents one after another from `place` on. Replaces other mappings there; equal ones
  // stay untouched. kInvalid changes nothing, nor does kNoMemory if nothing was mapped.
  Status Map(uint64_t place, const Extents& extents, const DescriptorTable& table);
  // Returns the addresses to "reserved".
  Status Unmap(uint64_t place, uint64_t bytes);

  uint8_t* data() const;
  uint64_t bytes() const { return space_ ? space_->bytes() : 0; }
  // The mappings by place, for a new agent.
  std::vector<Run> runs() const;
  uint64_t mapped_bytes() const;
  // Whether any part of a descriptor is mapped. If not, it is forgotten.
  bool Uses(uint32_t descriptor);

 private:
  struct Piece {
    device::Mapping mapping;
    uint32_t descriptor = 0;
  };
  Status Check(const v1::Extent& extent, const DescriptorTable& table) const;
  // The extent's block, imported once.
  Result<device::BlockPtr> BlockOf(const v1::Extent& extent, const DescriptorTable& table);
  // Makes `place` the border of a piece.
  void Cut(uint64_t place);
  // Sets *so to whether this part of a descriptor is mapped at the place already. Returns the
  // number of bytes for which that holds, at most `most`.
  uint64_t Lies(uint64_t place, uint32_t descriptor, uint64_t offset, uint64_t most,
                bool* so) const;

  // The order matters: mappings are destroyed first.
  std::unique_ptr<device::Device> device_;
  device::Access access_ = device::Access::kRead;
  device::SpacePtr space_;
  // A whole descriptor (or the first extent's range, if its size is unknown), and the bytes of it
  // that are mapped.
  struct Import {
    device::BlockPtr block;
    uint64_t mapped = 0;
  };
  std::map<uint32_t, Import> imports_;
  std::map<uint64_t, Piece> pieces_;  // by place
};

}  // namespace tangram
