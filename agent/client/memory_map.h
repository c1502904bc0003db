// Address ranges of an engine: reserved once, so that a piece keeps its address while its
// bank stands; pages are mapped into them as the agent names extents.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

// Descriptors received so far; extents name them by index.
class DescriptorTable {
 public:
  void Add(std::vector<UniqueFd> fds);
  // kInvalid when the extent is not inside a descriptor that was received, or not whole
  // pages. The size is the descriptor's at the time of Add.
  Status Check(const v1::Extent& extent) const;
  int fd(uint32_t index) const { return fds_[index].get(); }

 private:
  std::vector<UniqueFd> fds_;
  std::vector<uint64_t> sizes_;
};

// One reserved range of addresses. Nothing in it can be touched until it is mapped.
class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(MappedRange&& other) noexcept;
  MappedRange& operator=(MappedRange&& other) noexcept;
  ~MappedRange();

  static Result<MappedRange> Reserve(uint64_t bytes);

  // Maps the extents one after another from `offset` on. Checks everything first, so
  // that an error (kInvalid, kNoMemory) leaves the range as it was, short of a failing mmap.
  Status Map(uint64_t offset, const google::protobuf::RepeatedPtrField<v1::Extent>& extents,
             const DescriptorTable& table, bool writable);
  // Gives the addresses back to "reserved".
  Status Unmap(uint64_t offset, uint64_t bytes);

  uint8_t* data() const { return base_; }
  uint64_t size() const { return bytes_; }

 private:
  uint8_t* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tangram
