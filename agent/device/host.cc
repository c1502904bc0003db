#include "agent/device/host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "agent/device/hash.h"
#include "agent/device/occupancy.h"
#include "agent/device/runs.h"

namespace tangram::device {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;  // a shrinking file would kill its readers
constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

Status Failed(const char* call, const std::string& what) {
  const Code code = errno == ENOMEM || errno == ENOSPC ? Code::kNoMemory : Code::kInternal;
  return {code, fmt::format("host device: {} of {}: {}", call, what, std::strerror(errno))};
}

// Copies block by block, so that bytes are hashed while cached. Hashes the *written* bytes, not
// those that were read.
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

// fallocate reports a full tmpfs or cgroup here; a first touch would cause a SIGBUS. Only a touch
// creates huge pages of a memfd.
Status Fill(int fd, uint64_t bytes, const Pages& pages) {
  if (pages.kind == PageKind::kTransparent) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return Failed("mmap", fmt::format("{} bytes", bytes));
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    // If madvise cannot do it, fallocate does it or reports the error.
    (void)madvise(at, bytes, MADV_POPULATE_WRITE);
    munmap(at, bytes);
  }
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return OkStatus();
  return Failed("fallocate", fmt::format("{} bytes in pages of {}", bytes, Describe(pages)));
}

}  // namespace

// The files in order are the bytes of the arena.
struct HostDevice::Files {
  struct File {
    uint64_t start = 0, bytes = 0;
    UniqueFd own;    // for reading and writing
    SharedFd shown;  // exported to others
  };
  std::vector<File> files;

  uint64_t bytes() const { return files.empty() ? 0 : files.back().start + files.back().bytes; }

  // A seal against later writers would lock out the process that takes over when this one dies. So
  // only the descriptor's open mode makes it read-only.
  Status Add(UniqueFd own, uint64_t size, bool read_only) {
    const std::string path = fmt::format("/proc/self/fd/{}", own.get());
    UniqueFd shown(open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC));
    if (!shown) return Failed("opening", path);
    files.push_back(
        {bytes(), size, std::move(own), std::make_shared<const UniqueFd>(std::move(shown))});
    return OkStatus();
  }

  // Adds files until there are `want` bytes.
  Status Grow(const Options& options, uint64_t want) {
    const uint64_t most = options.file_bytes == 0 ? want : options.file_bytes;
    const unsigned huge =
        options.pages.kind == PageKind::kHugeTlb ? MFD_HUGETLB | (21U << MAP_HUGE_SHIFT) : 0U;
    while (bytes() < want) {
      const uint64_t size = std::min(most, want - bytes());
      UniqueFd fd(memfd_create(options.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | huge));
      if (!fd) return Failed("memfd_create", options.name);
      if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
        return Failed("ftruncate", fmt::format("{} to {} bytes", options.name, size));
      }
      TANGRAM_RETURN_IF_ERROR(Fill(fd.get(), size, options.pages));
      if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Failed("sealing", options.name);
      TANGRAM_RETURN_IF_ERROR(Add(std::move(fd), size, options.read_only));
    }
    return OkStatus();
  }

  // Calls `use(file, offset in it, bytes)` for the parts of an extent of the arena.
  template <typename Use>
  void EachIn(Extent extent, Use&& use) const {
    auto file = std::upper_bound(files.begin(), files.end(), extent.offset,
                                 [](uint64_t at, const File& f) { return at < f.start; });
    for (--file; extent.length > 0; ++file) {
      const uint64_t at = extent.offset - file->start;
      const uint64_t bytes = std::min(extent.length, file->bytes - at);
      use(*file, at, bytes);
      extent.offset += bytes;
      extent.length -= bytes;
    }
  }
};

struct HostDevice::OwnBlock final : ArenaBlock {
  OwnBlock(std::shared_ptr<Files> from, std::shared_ptr<Arena> arena, std::vector<Extent> extents)
      : ArenaBlock(std::move(arena), std::move(extents)), files(std::move(from)) {}
  const std::shared_ptr<Files> files;
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
  bool Unmap(uint64_t at, uint64_t bytes) override {
    // At vm.max_map_count the kernel splits no mapping. The memory stays readable there, so its
    // bytes must not be reused.
    if (mmap(start_ + at, bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0) == MAP_FAILED) {
      return false;
    }
    occupancy_.Drop(at, bytes);
    return true;
  }

  std::byte* const reserved_;
  const uint64_t slack_;
  std::byte* const start_;
  Occupancy occupancy_;
};

Result<std::unique_ptr<HostDevice>> HostDevice::Of(const Options& options,
                                                   std::shared_ptr<Files> files) {
  const uint64_t unit = options.pages.unit, bytes = RoundUp(options.bytes, unit);
  if (bytes == 0) return Status(Code::kInvalid, "host device: an arena of 0 bytes");
  if (options.file_bytes % unit != 0) {
    return Status(Code::kInvalid, fmt::format("host device: {} bytes a descriptor are not whole "
                                              "pages of {}",
                                              options.file_bytes, unit));
  }
  TANGRAM_RETURN_IF_ERROR(files->Grow(options, bytes));
  if (files->bytes() != bytes) {
    return Status(Code::kInvalid, fmt::format("host device: descriptors of {} bytes for an arena "
                                              "of {}",
                                              files->bytes(), bytes));
  }
  std::unique_ptr<HostDevice> device(new HostDevice(options.pages));
  device->files_ = std::move(files);
  device->arena_ = std::make_shared<Arena>(bytes, unit);
  return device;
}

Result<std::unique_ptr<HostDevice>> HostDevice::Make(const Options& options) {
  return Of(options, std::make_shared<Files>());
}

Result<std::unique_ptr<HostDevice>> HostDevice::Adopt(const Options& options,
                                                      std::span<const int> descriptors) {
  const uint64_t unit = options.pages.unit, most = RoundUp(options.bytes, unit);
  auto files = std::make_shared<Files>();
  std::set<std::pair<dev_t, ino_t>> known;
  for (const int descriptor : descriptors) {
    const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) return Failed("opening for writing", path);
    struct stat info {};
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    const bool there = fstat(fd.get(), &info) == 0 && info.st_size > 0;
    const auto size = static_cast<uint64_t>(info.st_size);
    const bool fits = there && static_cast<uint64_t>(info.st_blksize) % unit == 0 &&
                      size % unit == 0 && size <= most - files->bytes();
    if (!fits || seals < 0 || (seals & kSeals) != kSeals ||
        !known.emplace(info.st_dev, info.st_ino).second) {
      return Status(
          Code::kInvalid,
          fmt::format("host device: the descriptor is no sealed memory in pages of {}, of at most "
                      "{} bytes, or came twice (it has {} in pages of {}, seals {})",
                      unit, most - files->bytes(), info.st_size, info.st_blksize, seals));
    }
    TANGRAM_RETURN_IF_ERROR(files->Add(std::move(fd), size, options.read_only));
  }
  return Of(options, std::move(files));
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
  return BlockPtr(std::make_shared<OwnBlock>(files_, arena_, std::move(extents)));
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
  std::vector<Extent> all;
  for (const Extent& extent : extents) {
    const bool known = extent.descriptor < files_->files.size();
    const uint64_t size = known ? files_->files[extent.descriptor].bytes : 0;
    if (extent.offset > size || extent.length > size - extent.offset) {
      return Status(Code::kInvalid,
                    fmt::format("host device: a claim of {} bytes at {} of descriptor {}, which "
                                "has {}",
                                extent.length, extent.offset, extent.descriptor, size));
    }
    all.push_back({files_->files[extent.descriptor].start + extent.offset, extent.length});
  }
  if (Status status = arena_->Claim(all); !status.ok()) {
    return Status(status.code(), "host device: " + status.message());
  }
  return BlockOf(std::move(all));
}

Result<Export> HostDevice::ExportOf(const BlockPtr& block) {
  const auto* own = dynamic_cast<const OwnBlock*>(block.get());
  if (own == nullptr || own->files != files_) {
    return Status(Code::kInvalid, "host device: a block of another device");
  }
  Export out;
  std::map<SharedFd, uint32_t> known;
  for (const Extent& extent : own->extents()) {
    files_->EachIn(extent, [&](const Files::File& file, uint64_t at, uint64_t bytes) {
      const auto next = static_cast<uint32_t>(out.descriptors.size());
      const auto [of, fresh] = known.try_emplace(file.shown, next);
      if (fresh) out.descriptors.push_back(file.shown);
      out.extents.push_back({at, bytes, of->second});
    });
  }
  return out;
}

SharedFd HostDevice::Adopted(uint32_t descriptor) const {
  return files_->files.at(descriptor).shown;  // the adopted ones are the first
}

Result<std::vector<Extent>> HostDevice::PlaceOf(const BlockPtr& block) const {
  const auto* own = dynamic_cast<const OwnBlock*>(block.get());
  if (own == nullptr || own->files != files_) {
    return Status(Code::kInvalid, "host device: a block of another device");
  }
  return std::vector<Extent>(own->extents().begin(), own->extents().end());
}

Result<Readable> HostDevice::ForReading() const {
  if (files_ == nullptr) {
    return Status(Code::kInvalid, "host device: an importer has no memory to be read");
  }
  const uint64_t unit = files_->files.front().bytes;
  std::vector<SharedFd> all;
  for (const Files::File& file : files_->files) {
    if (file.start != all.size() * unit) {
      return Status(Code::kInvalid, "host device: its descriptors are of several sizes");
    }
    const std::string path = fmt::format("/proc/self/fd/{}", file.own.get());
    UniqueFd readable(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!readable) return Failed("opening for reading", path);
    all.push_back(std::make_shared<UniqueFd>(std::move(readable)));
  }
  return Readable{total_bytes(), unit, [all = std::move(all)](uint64_t number) -> Result<SharedFd> {
                    if (number < all.size()) return all[number];
                    return Status(Code::kInvalid, fmt::format("host device: descriptor {} of {}",
                                                              number, all.size()));
                  }};
}

Result<BlockPtr> HostDevice::Import(int descriptor, std::span<const Extent> extents) {
  // A file that shrinks while mapped kills its readers.
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
    uint64_t at = p.at;
    const auto add = [&](int fd, uint64_t offset, uint64_t length) {
      Run* last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && last->fd == fd && last->at + last->bytes == at &&
          last->offset + last->bytes == offset) {
        last->bytes += length;
      } else {
        runs.push_back({at, length, fd, offset});
      }
      at += length;
    };
    EachOf(own != nullptr ? own->extents() : std::span<const Extent>(foreign->extents), p.slice,
           [&](const Extent& extent) {
             if (own == nullptr) {
               add(foreign->fd.get(), extent.offset, extent.length);
               return true;
             }
             own->files->EachIn(extent,
                                [&](const Files::File& file, uint64_t offset, uint64_t length) {
                                  add(file.own.get(), offset, length);
                                });
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
  // An owner enters its pages while no one waits (Enter); an engine must not fault in a step.
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

// The pages exist since Make, and those of a memfd that is mapped for writing are entered writable
// even by a read. Reads are entered sixteen pages at a time, writes one by one, at three times the
// cost.
void HostDevice::Enter(const Memory& memory) {
  const uint64_t begin = memory.address / pages_.unit * pages_.unit;
  (void)madvise(reinterpret_cast<void*>(begin), memory.address + memory.bytes - begin,
                MADV_POPULATE_READ);
}

std::span<std::byte> HostDevice::ViewOf(const Memory& memory) {
  return {reinterpret_cast<std::byte*>(memory.address), memory.bytes};
}

}  // namespace tangram::device
