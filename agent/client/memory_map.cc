#include "agent/client/memory_map.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tangram {
namespace {

uint64_t PageBytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string Range(uint64_t offset, uint64_t length) {
  return "[" + std::to_string(offset) + ", +" + std::to_string(length) + ")";
}

}  // namespace

void DescriptorTable::Add(std::vector<UniqueFd> fds) {
  for (UniqueFd& fd : fds) {
    struct stat info {};
    const bool known = fstat(fd.get(), &info) == 0 && info.st_size > 0;
    sizes_.push_back(known ? static_cast<uint64_t>(info.st_size) : 0);
    fds_.push_back(std::move(fd));
  }
}

Status DescriptorTable::Check(const v1::Extent& extent) const {
  if (extent.fd_index() >= fds_.size()) {
    return {Code::kInvalid, "extent names descriptor " + std::to_string(extent.fd_index()) +
                                ", received " + std::to_string(fds_.size())};
  }
  const uint64_t size = sizes_[extent.fd_index()];
  if (extent.length() == 0 || extent.offset() % PageBytes() != 0 ||
      extent.length() % PageBytes() != 0 || extent.offset() > size ||
      extent.length() > size - extent.offset()) {
    return {Code::kInvalid, "extent " + Range(extent.offset(), extent.length()) +
                                " is not whole pages inside descriptor " +
                                std::to_string(extent.fd_index()) + " of " + std::to_string(size) +
                                " bytes"};
  }
  return OkStatus();
}

MappedRange::MappedRange(MappedRange&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedRange& MappedRange::operator=(MappedRange&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedRange::~MappedRange() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Result<MappedRange> MappedRange::Reserve(uint64_t bytes) {
  MappedRange range;
  if (bytes == 0) return range;
  if (bytes > (uint64_t{1} << 46)) {
    return Status{Code::kInvalid, "address range of " + std::to_string(bytes) + " bytes"};
  }
  bytes = (bytes + PageBytes() - 1) / PageBytes() * PageBytes();
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status{Code::kNoMemory, "reserving " + std::to_string(bytes) +
                                       " bytes of addresses: " + std::strerror(errno)};
  }
  range.base_ = static_cast<uint8_t*>(base);
  range.bytes_ = bytes;
  return range;
}

Status MappedRange::Map(uint64_t offset,
                        const google::protobuf::RepeatedPtrField<v1::Extent>& extents,
                        const DescriptorTable& table, bool writable) {
  uint64_t total = 0;
  for (const v1::Extent& extent : extents) {
    TANGRAM_RETURN_IF_ERROR(table.Check(extent));
    total += extent.length();  // each is at most 2^63: checked against a file's size
    if (total > bytes_) break;
  }
  if (offset % PageBytes() != 0 || offset > bytes_ || total > bytes_ - offset) {
    return {Code::kInvalid, "mapping " + Range(offset, total) +
                                " is not whole pages inside a range of " + std::to_string(bytes_) +
                                " bytes"};
  }
  for (const v1::Extent& extent : extents) {
    const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    if (mmap(base_ + offset, extent.length(), protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             table.fd(extent.fd_index()), static_cast<off_t>(extent.offset())) == MAP_FAILED) {
      return {Code::kNoMemory, "mapping " + Range(offset, extent.length()) + " of descriptor " +
                                   std::to_string(extent.fd_index()) + ": " + std::strerror(errno) +
                                   " (see vm.max_map_count)"};
    }
    offset += extent.length();
  }
  return OkStatus();
}

Status MappedRange::Unmap(uint64_t offset, uint64_t bytes) {
  if (offset % PageBytes() != 0 || bytes % PageBytes() != 0 || offset > bytes_ ||
      bytes > bytes_ - offset) {
    return {Code::kInvalid, "unmapping " + Range(offset, bytes) +
                                " is not whole pages inside a range of " + std::to_string(bytes_) +
                                " bytes"};
  }
  if (bytes == 0) return OkStatus();
  if (mmap(base_ + offset, bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return {Code::kNoMemory, "unmapping " + Range(offset, bytes) + ": " + std::strerror(errno)};
  }
  return OkStatus();
}

}  // namespace tangram
