// The one interface to memory: physical blocks, reserved addresses, mappings, copies, hashes.
// Backends are `host` (memfd and mmap), `cuda` (the driver's virtual memory management) and `ghost`
// (sizes without bytes). It has the shape of what a GPU can do: no mapping is replaced in place, a
// list is mapped at once, copies end later than they return.
// Nothing above this folder may know which one it is on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/device/event.h"
#include "agent/device/memory.h"

namespace tangram::device {

enum class Access { kRead, kReadWrite };

// Bytes of one exported descriptor.
struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t descriptor = 0;  // of the export's
  bool operator==(const Extent&) const = default;
};

// What another process needs to map a block: descriptors, which live as long as their memory does,
// and where in them the bytes lie, in order. Whether a device has one for all of its memory or one
// for each block is its own affair.
struct Export {
  std::vector<SharedFd> descriptors;
  std::vector<Extent> extents;
};

// All of a device's memory, for processes of other pods of this machine, which may read it. Lives
// as long as they like.
struct Readable {
  uint64_t bytes = 0;
  uint64_t unit = 0;  // bytes of each descriptor; the last may have fewer
  // Of the bytes from `number * unit` on. Thread-safe.
  std::function<Result<SharedFd>(uint64_t number)> descriptor;
};

// Physical memory, created here or imported. Freed when the last mapping and the last
// reference are gone.
class Block {
 public:
  virtual ~Block() = default;
  virtual uint64_t bytes() const = 0;
};
using BlockPtr = std::shared_ptr<Block>;

// Reserved addresses. What is not mapped faults. Given back with the last mapping and reference.
class Space {
 public:
  virtual ~Space() = default;
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;

 private:
  friend class Mapping;
  friend class Device;
  // False: it stays mapped, and its addresses taken; its blocks must not become free.
  virtual bool Unmap(uint64_t at, uint64_t bytes) = 0;
};
using SpacePtr = std::shared_ptr<Space>;

// Bytes of a block.
struct Slice {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A slice of a block at an offset of a space, for as long as this lives.
class Mapping {
 public:
  Mapping() = default;
  Mapping(SpacePtr space, uint64_t at, BlockPtr block, Slice slice)
      : space_(std::move(space)), block_(std::move(block)), at_(at), slice_(slice) {}
  Mapping(Mapping&&) noexcept = default;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  uint64_t at() const { return at_; }  // in the space
  uint64_t bytes() const { return slice_.bytes; }
  const Slice& slice() const { return slice_; }
  const BlockPtr& block() const { return block_; }

  // Cuts off what lies from `bytes` (whole units, fewer than there are) on. For importers: it is
  // the exporter that knows where a block may be cut. (Elsewhere a device may keep a part that is
  // given back mapped until the rest is, too.)
  Mapping Split(uint64_t bytes);

 private:
  friend class Device;
  SpacePtr space_;
  BlockPtr block_;
  uint64_t at_ = 0;
  Slice slice_;
};

// Where a slice is wanted.
struct Placement {
  uint64_t at = 0;  // in the space
  BlockPtr block;
  Slice slice;
};

// `hash`, if asked for, is of what arrived (HashOf), and is there when the event is done.
struct CopyOp {
  Memory to, from;  // of one size, apart from each other; if both have a shape, of the same planes
  uint64_t* hash = nullptr;
};
struct HashOp {
  Memory of;
  uint64_t* hash = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const char* name() const = 0;
  // What its pages are, for people: "4 KiB", "2 MiB (hugetlb)", ...
  virtual std::string pages() const = 0;
  // Unit of Create, Map and Unmap, in bytes.
  virtual uint64_t granularity() const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;

  virtual Result<SpacePtr> Reserve(uint64_t bytes) = 0;
  // kNoMemory with the numbers when fewer bytes are free. Contents are undefined.
  virtual Result<BlockPtr> Create(uint64_t bytes) = 0;
  // A block of exactly these bytes, which are free: for memory that another process of ours had,
  // and that this device took over (`descriptor`: of those that it was given).
  virtual Result<BlockPtr> Claim(std::span<const Extent> extents) = 0;
  virtual Result<Export> ExportOf(const BlockPtr& block) = 0;
  // Where in all of its memory a block's bytes lie, in order.
  virtual Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const = 0;
  // What others are given instead of the descriptor that it took over, by its place among them.
  virtual SharedFd Adopted(uint32_t /*descriptor*/) const { return nullptr; }
  // Where the system knows descriptors for reading alone, who has them can do no more. kInvalid:
  // there is nothing to read.
  virtual Result<Readable> ForReading() const = 0;
  // Takes the descriptor's bytes; duplicates it. Mapped for writing as far as it is open for that.
  // kInvalid also if whoever made it could take the bytes away again. Where memory comes in
  // handles, the one extent is a handle, whole.
  virtual Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) = 0;
  // Parts of what was imported may be mapped; else it is mapped whole.
  virtual bool maps_parts() const { return true; }

  // Maps all of them, in order, with this access, or none; nothing may lie there yet. What lies
  // side by side costs as one.
  virtual Result<std::vector<Mapping>> Map(const SpacePtr& space,
                                           std::span<const Placement> placements,
                                           Access access) = 0;
  // Ends mappings, side by side as one, once `after` is done.
  void Release(std::vector<Mapping> mappings, const Event& after);

  // In any order among each other. What an operation uses stays mapped until the event is done: a
  // mapping that goes before waits for it. Memory of the process itself its owner keeps.
  virtual Event Copy(std::span<const CopyOp> ops) = 0;
  virtual Event Hash(std::span<const HashOp> ops) = 0;

  // Memory of the host for bytes on their way to this device or from it. Copies with it need no
  // other on the way, where that matters to a device (a GPU's is pinned), and it is dear to make
  // then: whoever has it uses it again. kNoMemory with the numbers.
  virtual Result<std::shared_ptr<std::byte[]>> Staging(uint64_t bytes) {
    return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  }

  // Has what lies behind mapped memory made ready to be written, where the first write would do
  // that page by page. May take long; what was unmapped meanwhile, or cannot be, is left as it is.
  virtual void Enter(const Memory& /*memory*/) {}

  // Of a range.
  virtual std::span<std::byte> ViewOf(const Memory& memory) = 0;
  // False: it has sizes alone (`ghost`). Nothing is written there, nor sent from there.
  virtual bool has_bytes() const { return true; }
};

// Has `write` put the bytes of `memory`: into the place itself where the CPU reaches it, else into
// a buffer that is copied there (as for what is no range). Where a device has no bytes nothing is
// asked for.
Status Fill(const Memory& memory, const std::function<Status(std::span<std::byte>)>& write);
// One hash, waited for.
Status HashNow(const Memory& memory, uint64_t* hash);

// All of a device as one mapping for reading and writing.
Result<std::pair<SpacePtr, Mapping>> MapWhole(Device& device);

}  // namespace tangram::device
