#include "agent/device/host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/device/hash.h"
#include "agent/device/occupancy.h"
#include "agent/device/runs.h"

namespace tangram::device {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;  // a source that shrinks kills its readers
constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

Status Failed(const char* call, const std::string& what) {
  const Code code = errno == ENOMEM || errno == ENOSPC ? Code::kNoMemory : Code::kInternal;
  return {code, fmt::format("host device: {} of {}: {}", call, what, std::strerror(errno))};
}

// Block by block: what was copied is hashed while it lies in a cache. What was *written* is hashed,
// not what was read.
uint64_t CopyAndHash(std::span<std::byte> to, std::span<const std::byte> from) {
  constexpr size_t kBlock = 256 << 10;
  if (to.size() <= kBlock) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
    return HashOf(to);
  }
  Hasher hasher;
  for (size_t at = 0; at < to.size(); at += kBlock) {
    const size_t bytes = std::min(kBlock, to.size() - at);
    std::memcpy(to.data() + at, from.data() + at, bytes);
    hasher.Add(to.subspan(at, bytes));
  }
  return hasher.Value();
}

uint64_t HashIn(const Memory& memory) {
  return memory.shape != nullptr ? HashStrips(memory) : HashOf(View(memory));
}

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// fallocate reports a full tmpfs or cgroup here, where a first touch would be a SIGBUS. Huge pages
// of a memfd are made by a touch alone.
Status Fill(int fd, uint64_t bytes, const Pages& pages) {
  if (pages.kind == PageKind::kTransparent) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return Failed("mmap", fmt::format("{} bytes", bytes));
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    // What this kernel or this memory cannot do, fallocate does or reports.
    (void)madvise(at, bytes, MADV_POPULATE_WRITE);
    munmap(at, bytes);
  }
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return OkStatus();
  return Failed("fallocate", fmt::format("{} bytes in pages of {}", bytes, Describe(pages)));
}

}  // namespace

struct HostDevice::OwnBlock final : ArenaBlock {
  OwnBlock(std::shared_ptr<Memfd> from, std::shared_ptr<Arena> arena, std::vector<Extent> extents)
      : ArenaBlock(std::move(arena), std::move(extents)), memory(std::move(from)) {}
  const std::shared_ptr<Memfd> memory;
};

struct HostDevice::ForeignBlock final : Block {
  uint64_t bytes() const override { return size; }
  UniqueFd fd;
  std::vector<Extent> extents;
  uint64_t size = 0;
};

// One mmap.
struct HostDevice::Run {
  uint64_t at = 0, bytes = 0;
  int fd = -1;
  uint64_t offset = 0;  // in the descriptor
};

class HostDevice::HostSpace final : public Space {
 public:
  HostSpace(std::byte* reserved, uint64_t slack, std::byte* start, uint64_t bytes, uint64_t unit)
      : reserved_(reserved), slack_(slack), start_(start), occupancy_(bytes, unit) {}
  ~HostSpace() override { munmap(reserved_, bytes() + slack_); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(start_); }
  uint64_t bytes() const override { return occupancy_.bytes(); }

  Status Map(std::span<const Placement> placements, std::span<const Run> runs, int protection,
             int flags) {
    if (Status taken = occupancy_.Take(placements); !taken.ok()) {
      return {taken.code(), "host device: " + taken.message()};
    }
    for (const Run& run : runs) {
      if (mmap(start_ + run.at, run.bytes, protection, MAP_SHARED | MAP_FIXED | flags, run.fd,
               static_cast<off_t>(run.offset)) != MAP_FAILED) {
        continue;
      }
      Status status = Failed(
          "mapping", fmt::format("{} bytes at {} (see vm.max_map_count)", run.bytes, run.at));
      for (const Placement& p : placements) Unmap(p.at, p.slice.bytes);
      return status;
    }
    return OkStatus();
  }

 private:
  void Unmap(uint64_t at, uint64_t bytes) override {
    // Over reserved addresses this cannot fail but for want of kernel memory.
    (void)mmap(start_ + at, bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
    occupancy_.Drop(at, bytes);
  }

  std::byte* const reserved_;
  const uint64_t slack_;
  std::byte* const start_;
  Occupancy occupancy_;
};

// A seal against later writers would keep out the process that takes over when this one dies, so
// reading alone is a matter of how the descriptor was opened.
Status HostDevice::Open(uint64_t bytes, bool read_only) {
  const std::string path = fmt::format("/proc/self/fd/{}", memory_->own.get());
  memory_->shown.reset(open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC));
  if (!memory_->shown) return Failed("opening", path);
  arena_ = std::make_shared<Arena>(bytes, pages_.unit);
  return OkStatus();
}

Result<std::unique_ptr<HostDevice>> HostDevice::Make(const std::string& name, uint64_t bytes,
                                                     bool read_only, const Pages& pages) {
  std::unique_ptr<HostDevice> device(new HostDevice(pages));
  bytes = RoundUp(bytes, pages.unit);
  if (bytes == 0) return Status(Code::kInvalid, "host device: an arena of 0 bytes");
  const unsigned huge =
      pages.kind == PageKind::kHugeTlb ? MFD_HUGETLB | (21U << MAP_HUGE_SHIFT) : 0U;
  device->memory_ = std::make_shared<Memfd>();
  UniqueFd& fd = device->memory_->own;
  fd.reset(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | huge));
  if (!fd) return Failed("memfd_create", name);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("ftruncate", fmt::format("{} to {} bytes", name, bytes));
  }
  TANGRAM_RETURN_IF_ERROR(Fill(fd.get(), bytes, pages));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Failed("sealing", name);
  TANGRAM_RETURN_IF_ERROR(device->Open(bytes, read_only));
  return device;
}

Result<std::unique_ptr<HostDevice>> HostDevice::Adopt(int descriptor, uint64_t bytes,
                                                      bool read_only, const Pages& pages) {
  std::unique_ptr<HostDevice> device(new HostDevice(pages));
  bytes = RoundUp(bytes, pages.unit);
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  device->memory_ = std::make_shared<Memfd>();
  UniqueFd& fd = device->memory_->own;
  fd.reset(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return Failed("opening for writing", path);
  struct stat info {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  const bool pages_fit =
      fstat(fd.get(), &info) == 0 && static_cast<uint64_t>(info.st_blksize) % pages.unit == 0;
  if (!pages_fit || static_cast<uint64_t>(info.st_size) != bytes || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return Status(Code::kInvalid,
                  fmt::format("host device: the descriptor is no sealed arena of {} bytes in pages "
                              "of {} (it has {} in pages of {}, seals {})",
                              bytes, pages.unit, info.st_size, info.st_blksize, seals));
  }
  TANGRAM_RETURN_IF_ERROR(device->Open(bytes, read_only));
  return device;
}

std::unique_ptr<HostDevice> HostDevice::Importer(const Pages& pages) {
  return std::unique_ptr<HostDevice>(new HostDevice(pages));
}

Result<SpacePtr> HostDevice::Reserve(uint64_t bytes) {
  bytes = RoundUp(bytes, pages_.unit);
  // A huge page is one entry of the page table only at a multiple of its size.
  const uint64_t slack = pages_.huge;
  void* at = mmap(nullptr, bytes + slack, PROT_NONE, kReserved, -1, 0);
  if (at == MAP_FAILED) return Failed("reserving", fmt::format("{} bytes", bytes));
  auto* reserved = static_cast<std::byte*>(at);
  const auto address = reinterpret_cast<uint64_t>(at);
  const uint64_t skip = slack == 0 ? 0 : RoundUp(address, slack) - address;
  return SpacePtr(
      std::make_shared<HostSpace>(reserved, slack, reserved + skip, bytes, pages_.unit));
}

Result<BlockPtr> HostDevice::BlockOf(std::vector<Extent> extents) {
  return BlockPtr(std::make_shared<OwnBlock>(memory_, arena_, std::move(extents)));
}

Result<BlockPtr> HostDevice::Create(uint64_t bytes) {
  if (arena_ == nullptr) {
    return Status(Code::kNoMemory, "host device: an importer has no memory of its own");
  }
  auto extents = arena_->Take(bytes);
  if (!extents.ok()) {
    return Status(extents.status().code(), "host device: " + extents.status().message());
  }
  return BlockOf(std::move(extents).value());
}

Result<BlockPtr> HostDevice::Claim(std::span<const Extent> extents) {
  if (arena_ == nullptr) {
    return Status(Code::kInvalid, "host device: an importer has no memory of its own");
  }
  if (Status status = arena_->Claim(extents); !status.ok()) {
    return Status(status.code(), "host device: " + status.message());
  }
  return BlockOf({extents.begin(), extents.end()});
}

Result<Export> HostDevice::ExportOf(const BlockPtr& block) {
  const auto* own = dynamic_cast<const OwnBlock*>(block.get());
  if (own == nullptr || own->memory != memory_) {
    return Status(Code::kInvalid, "host device: a block of another device");
  }
  return Export{{memory_->shown.get()}, {own->extents().begin(), own->extents().end()}};
}

Result<UniqueFd> HostDevice::ForReading() const {
  if (memory_ == nullptr) {
    return Status(Code::kInvalid, "host device: an importer has no memory of its own");
  }
  const std::string path = fmt::format("/proc/self/fd/{}", memory_->own.get());
  UniqueFd out(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!out) return Failed("opening for reading", path);
  return out;
}

Result<BlockPtr> HostDevice::Import(int descriptor, std::span<const Extent> extents) {
  // What shrinks while it is mapped ends its readers.
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(descriptor, &info) != 0) {
    return Status(Code::kInvalid, "host device: an imported descriptor is not sealed");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  auto block = std::make_shared<ForeignBlock>();
  for (const Extent& extent : extents) {
    if (extent.length == 0 || extent.offset % pages_.unit != 0 ||
        extent.length % pages_.unit != 0) {
      return Status(Code::kInvalid,
                    fmt::format("host device: import of {} bytes at {} is not in pages of {}",
                                extent.length, extent.offset, pages_.unit));
    }
    if (extent.offset > size || extent.length > size - extent.offset) {
      return Status(Code::kInvalid, fmt::format("host device: import of {} bytes at {} of {}",
                                                extent.length, extent.offset, size));
    }
    block->size += extent.length;
  }
  block->fd.reset(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!block->fd) return Failed("duplicating", "an imported descriptor");
  block->extents.assign(extents.begin(), extents.end());
  return BlockPtr(std::move(block));
}

Result<std::vector<HostDevice::Run>> HostDevice::RunsOf(
    std::span<const Placement> placements) const {
  std::vector<Run> runs;
  for (const Placement& p : placements) {
    const auto* own = dynamic_cast<const OwnBlock*>(p.block.get());
    const auto* foreign = dynamic_cast<const ForeignBlock*>(p.block.get());
    const uint64_t bytes = p.block == nullptr ? 0 : p.block->bytes();
    if ((own == nullptr && foreign == nullptr) || p.slice.bytes == 0 ||
        p.slice.offset % pages_.unit != 0 || p.slice.bytes % pages_.unit != 0 ||
        p.slice.offset > bytes || p.slice.bytes > bytes - p.slice.offset) {
      return Status(Code::kInvalid,
                    fmt::format("host device: {} bytes at {} are no pages of a block of {}",
                                p.slice.bytes, p.slice.offset, bytes));
    }
    const int fd = own != nullptr ? own->memory->own.get() : foreign->fd.get();
    uint64_t at = p.at;
    EachOf(own != nullptr ? own->extents() : std::span<const Extent>(foreign->extents), p.slice,
           [&](const Extent& extent) {
             Run* last = runs.empty() ? nullptr : &runs.back();
             if (last != nullptr && last->fd == fd && last->at + last->bytes == at &&
                 last->offset + last->bytes == extent.offset) {
               last->bytes += extent.length;
             } else {
               runs.push_back({at, extent.length, fd, extent.offset});
             }
             at += extent.length;
             return true;
           });
  }
  return runs;
}

Result<std::vector<Mapping>> HostDevice::Map(const SpacePtr& space,
                                             std::span<const Placement> placements, Access access) {
  auto runs = RunsOf(placements);
  if (!runs.ok()) return runs.status();
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // An owner enters its pages when nobody waits (Enter), an engine must not fault in a step.
  const int flags = arena_ == nullptr ? MAP_POPULATE : 0;
  TANGRAM_RETURN_IF_ERROR(
      static_cast<HostSpace&>(*space).Map(placements, *runs, protection, flags));
  std::vector<Mapping> out;
  out.reserve(placements.size());
  for (const Placement& p : placements) out.emplace_back(space, p.at, p.block, p.slice);
  return out;
}

Event HostDevice::Copy(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) {
    if (op.to.shape != nullptr || op.from.shape != nullptr) {
      if (op.to.bytes != op.from.bytes || !CopyStrips(op.to, op.from, op.hash)) {
        return Event::Finished(
            {Code::kInvalid, fmt::format("host device: copy of {} bytes to {}, or "
                                         "of units to units of another shape",
                                         op.from.bytes, op.to.bytes)});
      }
      continue;
    }
    const std::span<std::byte> to = View(op.to);
    const std::span<const std::byte> from = View(op.from);
    if (to.size() != op.to.bytes || from.size() != to.size()) {
      return Event::Finished({Code::kInvalid, fmt::format("host device: copy of {} bytes to {}",
                                                          op.from.bytes, op.to.bytes)});
    }
    if (op.hash != nullptr) {
      *op.hash = CopyAndHash(to, from);
    } else if (!to.empty()) {
      std::memcpy(to.data(), from.data(), to.size());
    }
  }
  return Event::Finished(OkStatus());
}

Event HostDevice::Hash(std::span<const HashOp> ops) {
  for (const HashOp& op : ops) *op.hash = HashIn(op.of);
  return Event::Finished(OkStatus());
}

void HostDevice::Enter(const Memory& memory) {
  const uint64_t begin = memory.address / pages_.unit * pages_.unit;
  (void)madvise(reinterpret_cast<void*>(begin), memory.address + memory.bytes - begin,
                MADV_POPULATE_WRITE);
}

std::span<std::byte> HostDevice::ViewOf(const Memory& memory) {
  return {reinterpret_cast<std::byte*>(memory.address), memory.bytes};
}

}  // namespace tangram::device
