// Address ranges of an engine: reserved once, so that a piece keeps its address while its bank
// stands; memory is mapped into them as the agent names extents, through the same devices that the
// agent has (agent/device).
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

// Descriptors that the agent passed; extents name them by the number that it gave them.
class DescriptorTable {
 public:
  struct Descriptor {
    UniqueFd fd;
    uint64_t bytes = 0;  // when it was added; 0: it does not tell, as a GPU's handle
  };

  // What comes under a number that is taken leaves neither: nobody knows which one is meant.
  void Add(uint32_t number, UniqueFd fd);
  // Null: there is none.
  const Descriptor* Find(uint32_t number) const;
  void Close(uint32_t number) { descriptors_.erase(number); }
  const std::map<uint32_t, Descriptor>& all() const { return descriptors_; }

 private:
  std::map<uint32_t, Descriptor> descriptors_;
};

// One reserved range of addresses. Nothing in it can be touched until it is mapped.
class Region {
 public:
  // What lies at a place.
  struct Run {
    uint64_t place = 0, bytes = 0;
    uint32_t descriptor = 0;
    uint64_t offset = 0;  // in it
  };

  Region() = default;
  static Result<Region> Reserve(std::unique_ptr<device::Device> importer, uint64_t bytes,
                                device::Access access);

  // Maps the extents one after another from `place` on; what else was there is there no more, what
  // lies there already stays. kInvalid changes nothing; so does kNoMemory where nothing was mapped.
  Status Map(uint64_t place, const Extents& extents, const DescriptorTable& table);
  // Gives the addresses back to "reserved".
  Status Unmap(uint64_t place, uint64_t bytes);

  uint8_t* data() const;
  uint64_t bytes() const { return space_ ? space_->bytes() : 0; }
  // What is mapped, by place: to tell a new agent.
  std::vector<Run> runs() const;
  uint64_t mapped_bytes() const;
  // Whether anything of a descriptor is mapped. Where not, it is forgotten.
  bool Uses(uint32_t descriptor);

 private:
  struct Piece {
    device::Mapping mapping;
    uint32_t descriptor = 0;
  };
  Status Check(const v1::Extent& extent, const DescriptorTable& table) const;
  // What the extent is of, imported once.
  Result<device::BlockPtr> BlockOf(const v1::Extent& extent, const DescriptorTable& table);
  // Makes `place` the border of a piece.
  void Cut(uint64_t place);
  // Whether this part of a descriptor lies at the place already, and for how many bytes, at most
  // so many, that holds.
  uint64_t Lies(uint64_t place, uint32_t descriptor, uint64_t offset, uint64_t most,
                bool* so) const;

  // The order matters: mappings go first.
  std::unique_ptr<device::Device> device_;
  device::Access access_ = device::Access::kRead;
  device::SpacePtr space_;
  // Of a whole descriptor (as far as the first extent tells, where it does not tell itself), and
  // what of it is mapped.
  struct Import {
    device::BlockPtr block;
    uint64_t mapped = 0;
  };
  std::map<uint32_t, Import> imports_;
  std::map<uint64_t, Piece> pieces_;  // by place
};

}  // namespace tangram
