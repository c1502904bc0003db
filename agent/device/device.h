// The one interface to memory: physical blocks, reserved addresses, mappings, copies, hashes.
// Backends are `host` (memfd and mmap), `cuda` (the driver's virtual memory management) and `ghost`
// (sizes without bytes). It follows the abilities of a GPU: no mapping is replaced in place, lists
// are mapped together, copies end after they return. No code above this folder may know its
// backend.
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
  uint32_t descriptor = 0;  // index in Export::descriptors
  bool operator==(const Extent&) const = default;
};

// Everything that another process needs to map a block: descriptors, which live as long as their
// memory, and the block's extents in them, in order. Each device decides whether it has one
// descriptor or one per block.
struct Export {
  std::vector<SharedFd> descriptors;
  std::vector<Extent> extents;
};

// All of a device's memory, for reading by processes of other pods of this machine. It lives as
// long as they use it.
struct Readable {
  uint64_t bytes = 0;
  uint64_t unit = 0;  // bytes of each descriptor; the last may have fewer
  // The descriptor of the bytes from `number * unit` on. Thread-safe.
  std::function<Result<SharedFd>(uint64_t number)> descriptor;
};

// Physical memory, created here or imported. Freed with its last mapping and reference.
class Block {
 public:
  virtual ~Block() = default;
  virtual uint64_t bytes() const = 0;
};
using BlockPtr = std::shared_ptr<Block>;

// Reserved addresses. Access to an unmapped address faults. Freed with the last mapping and
// reference.
class Space {
 public:
  virtual ~Space() = default;
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;

 private:
  friend class Mapping;
  friend class Device;
  // False: it stays mapped and its addresses stay reserved; its blocks must not become free.
  virtual bool Unmap(uint64_t at, uint64_t bytes) = 0;
};
using SpacePtr = std::shared_ptr<Space>;

// A part of a block.
struct Slice {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A slice of a block, mapped at an offset of a space during the lifetime of this object.
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

  // Cuts off the part from `bytes` on (whole units, fewer than there are). For importers: the
  // exporter knows where a block may be cut. (Another device may keep an unmapped part mapped until
  // the rest is unmapped too.)
  Mapping Split(uint64_t bytes);

 private:
  friend class Device;
  SpacePtr space_;
  BlockPtr block_;
  uint64_t at_ = 0;
  Slice slice_;
};

// A slice to be mapped, and its place.
struct Placement {
  uint64_t at = 0;  // in the space
  BlockPtr block;
  Slice slice;
};

// `hash`, if set, receives the hash of the written bytes (HashOf) by the end of the event.
struct CopyOp {
  Memory to, from;  // same size, no overlap; with two shapes: same planes
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
  // Kind of its pages, for people: "4 KiB", "2 MiB (hugetlb)", ...
  virtual std::string pages() const = 0;
  // Unit of Create, Map and Unmap, in bytes.
  virtual uint64_t granularity() const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;

  virtual Result<SpacePtr> Reserve(uint64_t bytes) = 0;
  // kNoMemory with the numbers: fewer bytes are free. Contents are undefined.
  virtual Result<BlockPtr> Create(uint64_t bytes) = 0;
  // A block of exactly these free bytes: for memory that this device adopted from a dead agent
  // (`descriptor`: index among the adopted ones).
  virtual Result<BlockPtr> Claim(std::span<const Extent> extents) = 0;
  virtual Result<Export> ExportOf(const BlockPtr& block) = 0;
  // Extents of a block in the device's whole memory, in order.
  virtual Result<std::vector<Extent>> PlaceOf(const BlockPtr& block) const = 0;
  // The descriptor to export in place of the adopted one with this index.
  virtual SharedFd Adopted(uint32_t /*descriptor*/) const { return nullptr; }
  // If the system has read-only descriptors, receivers can only read. kInvalid: there is no memory
  // to read.
  virtual Result<Readable> ForReading() const = 0;
  // Takes the descriptor's bytes; duplicates it. Mapped for writing if the descriptor allows it.
  // kInvalid also if its creator could take the bytes away again. For memory in handles, the one
  // extent is a whole handle.
  virtual Result<BlockPtr> Import(int descriptor, std::span<const Extent> extents) = 0;
  // Parts of an import may be mapped; else only the whole.
  virtual bool maps_parts() const { return true; }

  // Maps all of them, in order, with this access, or none. The places must be unmapped. Adjacent
  // placements cost as much as one.
  virtual Result<std::vector<Mapping>> Map(const SpacePtr& space,
                                           std::span<const Placement> placements,
                                           Access access) = 0;
  // Ends mappings once `after` is done; adjacent ones together.
  void Release(std::vector<Mapping> mappings, const Event& after);

  // Operations run in any order. Memory of an operation stays mapped until the event is done: the
  // end of its mapping waits for it. For memory of the process itself the caller ensures that.
  virtual Event Copy(std::span<const CopyOp> ops) = 0;
  virtual Event Hash(std::span<const HashOp> ops) = 0;

  // Memory of the host for bytes to or from this device. For a GPU it is pinned, so copies need no
  // other buffer. Then it is expensive to create: reuse it. kNoMemory with the numbers.
  virtual Result<std::shared_ptr<std::byte[]>> Staging(uint64_t bytes) {
    return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  }

  // Prepares mapped memory for writing, if the first write would otherwise prepare page by page.
  // May take long; skips memory that was unmapped meanwhile or cannot be prepared.
  virtual void Enter(const Memory& /*memory*/) {}

  // For ranges only.
  virtual std::span<std::byte> ViewOf(const Memory& memory) = 0;
  // False: it has only sizes (`ghost`), so no code writes to its memory or sends from it.
  virtual bool has_bytes() const { return true; }
};

// Has `write` store the bytes of `memory`: in place if the CPU reaches it, else in a buffer that is
// copied there (as for strips). If a device has no bytes, `write` is not called.
Status Fill(const Memory& memory, const std::function<Status(std::span<std::byte>)>& write);
// Hashes one memory and waits for the result.
Status HashNow(const Memory& memory, uint64_t* hash);

// All of a device's memory as one mapping for reading and writing.
Result<std::pair<SpacePtr, Mapping>> MapWhole(Device& device);

}  // namespace tangram::device
