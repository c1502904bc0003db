#include "agent/device/host_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tangram::device {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;  // a source that shrinks kills its readers

Status Failed(const char* call, const std::string& what) {
  return {Code::kInternal,
          fmt::format("host device: {} of {}: {}", call, what, std::strerror(errno))};
}

bool InPages(const Extent& extent) {
  return extent.length != 0 && extent.offset % HostDevice::kPage == 0 &&
         extent.length % HostDevice::kPage == 0;
}

}  // namespace

struct HostDevice::HostHandle final : Handle {
  ~HostHandle() override {
    if (arena != nullptr) {
      arena->Give(extents);
    } else if (fd >= 0) {
      close(fd);
    }
  }
  uint64_t bytes() const override { return size; }

  std::shared_ptr<Arena> arena;  // null: imported
  int fd = -1;                   // the arena's, or an own duplicate when imported
  std::vector<Extent> extents;
  uint64_t size = 0;
};

struct HostDevice::HostRange final : Range {
  ~HostRange() override { munmap(start, size); }
  std::byte* base() const override { return start; }
  uint64_t bytes() const override { return size; }

  std::byte* start = nullptr;
  uint64_t size = 0;
  std::mutex mu;
  std::map<uint64_t, HandlePtr> mapped;  // by offset
};

HostDevice::Arena::~Arena() {
  if (owner != nullptr) munmap(owner, bytes);
  if (fd >= 0) close(fd);
}

std::vector<Extent> HostDevice::Arena::Take(uint64_t want) {
  const std::scoped_lock lock(mu);
  if (want == 0 || want > free_bytes) return {};
  free_bytes -= want;
  std::vector<Extent> out;
  const auto fits = by_length.lower_bound({want, 0});
  auto next = fits == by_length.end() ? free.begin() : free.find(fits->second);
  while (want > 0) {
    const auto run = next++;
    const auto [offset, length] = *run;
    const uint64_t take = std::min(length, want);
    Erase(run);
    if (take < length) Insert(offset + take, length - take);
    out.push_back({offset, take});
    want -= take;
  }
  return out;
}

void HostDevice::Arena::Insert(uint64_t offset, uint64_t length) {
  free.emplace(offset, length);
  by_length.emplace(length, offset);
}

void HostDevice::Arena::Erase(Runs::iterator run) {
  by_length.erase({run->second, run->first});
  free.erase(run);
}

void HostDevice::Arena::Give(std::span<const Extent> extents) {
  const std::scoped_lock lock(mu);
  GiveLocked(extents);
}

void HostDevice::Arena::GiveLocked(std::span<const Extent> extents) {
  for (const Extent& extent : extents) {
    free_bytes += extent.length;
    auto next = free.lower_bound(extent.offset);
    uint64_t offset = extent.offset;
    uint64_t length = extent.length;
    if (next != free.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        length += before->second;
        Erase(before);
      }
    }
    if (next != free.end() && next->first == extent.offset + extent.length) {
      length += next->second;
      Erase(next);
    }
    Insert(offset, length);
  }
}

bool HostDevice::Arena::Claim(std::span<const Extent> extents) {
  const std::scoped_lock lock(mu);
  const auto inside = [&](const Extent& extent) {
    auto run = free.upper_bound(extent.offset);
    if (run == free.begin()) return free.end();
    --run;
    const uint64_t skip = extent.offset - run->first;
    // Subtracted, never added: who claims may say anything.
    return skip <= run->second && extent.length <= run->second - skip ? run : free.end();
  };
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto run = inside(extents[i]);
    if (run == free.end()) {
      GiveLocked(extents.first(i));
      return false;
    }
    const auto [offset, length] = *run;
    Erase(run);
    const uint64_t end = extents[i].offset + extents[i].length;
    if (offset < extents[i].offset) Insert(offset, extents[i].offset - offset);
    if (end < offset + length) Insert(end, offset + length - end);
    free_bytes -= extents[i].length;
  }
  return true;
}

// Maps the arena and makes the descriptor that others get. A seal against later writers would
// keep out the process that takes over when this one dies, so reading alone is a matter of how
// the descriptor was opened.
Status HostDevice::Arena::Open(bool read_only) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return Failed("mmap", "an arena");
  owner = static_cast<std::byte*>(mapped);
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  shown.reset(open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC));
  if (!shown) return Failed("opening", path);
  Insert(0, bytes);
  free_bytes = bytes;
  return OkStatus();
}

Result<std::unique_ptr<HostDevice>> HostDevice::Make(const std::string& name, uint64_t bytes,
                                                     bool read_only) {
  std::unique_ptr<HostDevice> device(new HostDevice);
  device->arena_ = std::make_shared<Arena>();
  Arena& arena = *device->arena_;
  arena.bytes = (bytes + kPage - 1) / kPage * kPage;
  device->total_ = arena.bytes;
  if (arena.bytes == 0) return Status(Code::kInvalid, "host device: an arena of 0 bytes");
  arena.fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (arena.fd < 0) return Failed("memfd_create", name);
  if (ftruncate(arena.fd, static_cast<off_t>(arena.bytes)) != 0) {
    return Failed("ftruncate", fmt::format("{} to {} bytes", name, arena.bytes));
  }
  // fallocate reports a full tmpfs or cgroup here, where a first touch would be a SIGBUS.
  if (fallocate(arena.fd, 0, 0, static_cast<off_t>(arena.bytes)) != 0) {
    return Failed("fallocate", fmt::format("{} bytes of {}", arena.bytes, name));
  }
  if (fcntl(arena.fd, F_ADD_SEALS, kSeals) != 0) return Failed("sealing", name);
  TANGRAM_RETURN_IF_ERROR(arena.Open(read_only));
  return device;
}

Result<std::unique_ptr<HostDevice>> HostDevice::Adopt(int fd, uint64_t bytes, bool read_only) {
  std::unique_ptr<HostDevice> device(new HostDevice);
  device->arena_ = std::make_shared<Arena>();
  Arena& arena = *device->arena_;
  arena.bytes = (bytes + kPage - 1) / kPage * kPage;
  device->total_ = arena.bytes;
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  arena.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (arena.fd < 0) return Failed("opening for writing", path);
  struct stat info {};
  const int seals = fcntl(arena.fd, F_GET_SEALS);
  if (fstat(arena.fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != arena.bytes ||
      seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kInvalid,
                  fmt::format("host device: the descriptor is no sealed arena of {} bytes (it has "
                              "{}, seals {})",
                              arena.bytes, info.st_size, seals));
  }
  TANGRAM_RETURN_IF_ERROR(arena.Open(read_only));
  return device;
}

std::unique_ptr<HostDevice> HostDevice::Importer() {
  return std::unique_ptr<HostDevice>(new HostDevice);
}

HostDevice::~HostDevice() = default;

uint64_t HostDevice::free_bytes() const {
  if (arena_ == nullptr) return 0;
  const std::scoped_lock lock(arena_->mu);
  return arena_->free_bytes;
}

Result<std::unique_ptr<Range>> HostDevice::Reserve(uint64_t bytes) {
  auto range = std::make_unique<HostRange>();
  range->size = (bytes + kPage - 1) / kPage * kPage;
  void* at =
      mmap(nullptr, range->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    range->size = 0;
    return Failed("reserving", fmt::format("{} bytes", bytes));
  }
  range->start = static_cast<std::byte*>(at);
  return std::unique_ptr<Range>(std::move(range));
}

Result<HandlePtr> HostDevice::Create(uint64_t bytes) {
  if (bytes == 0 || bytes % kPage != 0) {
    return Status(Code::kInvalid,
                  fmt::format("host device: {} bytes is no multiple of {}", bytes, kPage));
  }
  auto handle = std::make_shared<HostHandle>();
  if (arena_ != nullptr) handle->extents = arena_->Take(bytes);
  if (handle->extents.empty()) {
    return Status(Code::kNoMemory, fmt::format("host device: {} bytes asked, {} of {} free", bytes,
                                               free_bytes(), total_));
  }
  handle->arena = arena_;
  handle->fd = arena_->shown.get();
  handle->size = bytes;
  return HandlePtr(std::move(handle));
}

Result<HandlePtr> HostDevice::Claim(std::span<const Extent> extents) {
  auto handle = std::make_shared<HostHandle>();
  for (const Extent& extent : extents) {
    if (!InPages(extent) || extent.length > total_) {
      return Status(Code::kInvalid, fmt::format("host device: claim of {} bytes at {} is not in "
                                                "pages of {} of an arena of {}",
                                                extent.length, extent.offset, kPage, total_));
    }
    handle->size += extent.length;  // cannot wrap while each of them is free and none twice
  }
  if (arena_ == nullptr || extents.empty() || !arena_->Claim(extents)) {
    return Status(Code::kInvalid,
                  fmt::format("host device: {} bytes are not free to be claimed", handle->size));
  }
  handle->extents.assign(extents.begin(), extents.end());
  handle->arena = arena_;
  handle->fd = arena_->shown.get();
  return HandlePtr(std::move(handle));
}

Result<Export> HostDevice::ExportHandle(const HandlePtr& handle) {
  const auto* host = dynamic_cast<const HostHandle*>(handle.get());
  if (host == nullptr) return Status(Code::kInvalid, "host device: a handle of another device");
  return Export{host->fd, host->extents};
}

Result<HandlePtr> HostDevice::Import(int fd, std::span<const Extent> extents) {
  auto handle = std::make_shared<HostHandle>();
  for (const Extent& extent : extents) {
    if (!InPages(extent)) {
      return Status(Code::kInvalid,
                    fmt::format("host device: import of {} bytes at {} is not in pages of {}",
                                extent.length, extent.offset, kPage));
    }
    handle->size += extent.length;
  }
  handle->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (handle->fd < 0) return Failed("duplicating", "an imported descriptor");
  handle->extents.assign(extents.begin(), extents.end());
  return HandlePtr(std::move(handle));
}

Status HostDevice::Map(Range& range, uint64_t offset, const HandlePtr& handle) {
  auto& host = static_cast<HostRange&>(range);
  const auto* memory = static_cast<const HostHandle*>(handle.get());
  const std::scoped_lock lock(host.mu);
  const auto next = host.mapped.lower_bound(offset);
  const bool clash = (next != host.mapped.end() && next->first < offset + memory->size) ||
                     (next != host.mapped.begin() &&
                      std::prev(next)->first + std::prev(next)->second->bytes() > offset);
  if (clash || offset % kPage != 0 || offset > host.size || memory->size > host.size - offset) {
    return {Code::kInvalid,
            fmt::format("host device: cannot map {} bytes at {} of a range of {}{}", memory->size,
                        offset, host.size, clash ? ": part of it is mapped" : "")};
  }
  uint64_t at = offset;
  for (const Extent& extent : memory->extents) {
    std::byte* to = host.start + at;
    // A second view of the owner's mapping.
    void* got = memory->arena != nullptr
                    ? mremap(memory->arena->owner + extent.offset, 0, extent.length,
                             MREMAP_MAYMOVE | MREMAP_FIXED, to)
                    : mmap(to, extent.length, PROT_READ, MAP_SHARED | MAP_FIXED, memory->fd,
                           static_cast<off_t>(extent.offset));
    if (got == MAP_FAILED || mprotect(to, extent.length, PROT_NONE) != 0) {
      const Status status = Failed("mapping", fmt::format("{} bytes at {}", extent.length, at));
      Clear(host, offset, at + extent.length - offset);  // never a mixed range
      return status;
    }
    at += extent.length;
  }
  host.mapped.emplace(offset, handle);
  return OkStatus();
}

Status HostDevice::SetAccess(Range& range, uint64_t offset, uint64_t bytes, Access access) {
  const int protection = access == Access::kNone   ? PROT_NONE
                         : access == Access::kRead ? PROT_READ
                                                   : PROT_READ | PROT_WRITE;
  if (mprotect(range.base() + offset, bytes, protection) != 0) {
    return Failed("setting access", fmt::format("{} bytes at {}", bytes, offset));
  }
  return OkStatus();
}

void HostDevice::Clear(HostRange& range, uint64_t offset, uint64_t bytes) {
  // Over a reserved range of the same object this cannot fail but for want of kernel memory.
  (void)mmap(range.start + offset, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Status HostDevice::Unmap(Range& range, uint64_t offset) {
  auto& host = static_cast<HostRange&>(range);
  const std::scoped_lock lock(host.mu);
  const auto it = host.mapped.find(offset);
  if (it == host.mapped.end()) {
    return {Code::kInvalid, fmt::format("host device: nothing was mapped at {}", offset)};
  }
  Clear(host, offset, it->second->bytes());
  host.mapped.erase(it);
  return OkStatus();
}

void HostDevice::Copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace tangram::device
