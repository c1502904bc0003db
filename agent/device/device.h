// The one interface to memory: physical handles, address ranges, mappings, copies.
// `host` (memfd + mmap) is here; `cuda` (driver VMM) has the same shape: no atomic
// replace of a mapping, a handle is the unit that moves, a range is unmapped whole.
// Nothing above this file may know which one it is on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"

namespace tangram::device {

enum class Access { kNone, kRead, kReadWrite };

// Bytes of one exported descriptor.
struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const Extent&) const = default;
};

// What another process needs to map a handle: a descriptor that stays the exporter's, and
// where in it the bytes lie, in order.
struct Export {
  int fd = -1;
  std::vector<Extent> extents;
};

// Physical memory, created here or imported. Freed when the last mapping and the last
// reference are gone.
class Handle {
 public:
  virtual ~Handle() = default;
  virtual uint64_t bytes() const = 0;
};
using HandlePtr = std::shared_ptr<Handle>;

// A reserved address range. Unmapped parts fault. Released with the object.
class Range {
 public:
  virtual ~Range() = default;
  virtual std::byte* base() const = 0;
  virtual uint64_t bytes() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const char* name() const = 0;
  // Unit of Create, Map and Unmap, in bytes.
  virtual uint64_t granularity() const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;

  virtual Result<std::unique_ptr<Range>> Reserve(uint64_t bytes) = 0;
  // kNoMemory with the numbers when fewer bytes are free. Contents are undefined.
  virtual Result<HandlePtr> Create(uint64_t bytes) = 0;
  // A handle on exactly these bytes, which are free: for memory that another process of ours
  // had, and that this device took over.
  virtual Result<HandlePtr> Claim(std::span<const Extent> extents) = 0;
  virtual Result<Export> ExportHandle(const HandlePtr& handle) = 0;
  // Takes the descriptor's extents as read-only memory; duplicates `fd`.
  virtual Result<HandlePtr> Import(int fd, std::span<const Extent> extents) = 0;

  // Maps the whole handle at `offset`, which must be unmapped. No access until SetAccess.
  virtual Status Map(Range& range, uint64_t offset, const HandlePtr& handle) = 0;
  virtual Status SetAccess(Range& range, uint64_t offset, uint64_t bytes, Access access) = 0;
  // Unmaps what Map mapped at `offset`, whole.
  virtual Status Unmap(Range& range, uint64_t offset) = 0;

  // Both sides mapped with the access it takes; returns when done.
  virtual void Copy(std::byte* to, const std::byte* from, uint64_t bytes) = 0;
};

}  // namespace tangram::device
