#include "agent/store/testing/engine_view.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace tangram::store::testing {

void EngineView::Map(const EngineMappings& mappings, uint64_t page) {
  for (const v1::Mapping& mapping : mappings.mappings) {
    uint64_t at = mapping.offset() / page;
    for (const v1::Extent& extent : mapping.extents()) {
      const SharedFd& fd = mappings.descriptors.at(extent.fd_index());
      struct stat info {};
      if (fstat(fd->get(), &info) != 0) throw std::runtime_error("fstat");
      for (uint64_t b = 0; b < extent.length(); b += page) {
        pages_[{mapping.dense() ? kDenseBank : mapping.bank(), at++}] = {
            fd, info.st_ino, extent.offset() + b, {extent.offset(), extent.length()}};
      }
    }
  }
}

void EngineView::Unmap(const std::vector<v1::Mapping>& mappings, uint64_t page) {
  for (const v1::Mapping& mapping : mappings) {
    uint64_t at = mapping.offset() / page;
    for (const v1::Extent& extent : mapping.extents()) {
      for (uint64_t b = 0; b < extent.length(); b += page) {
        pages_.erase({mapping.dense() ? kDenseBank : mapping.bank(), at++});
      }
    }
  }
}

// As an engine does: imports the extent of the mapping, and maps it for reading.
Status EngineView::ReadAt(const Place& place, uint64_t offset, std::span<std::byte> to) const {
  const device::RankDevices devices = platform_->Importers();
  device::Device& weights = *devices.weights;
  auto block = weights.Import(place.fd->get(), {&place.extent, 1});
  if (!block.ok()) return block.status();
  auto space = weights.Reserve(place.extent.length);
  if (!space.ok()) return space.status();
  const device::Placement whole{0, *block, {0, place.extent.length}};
  const auto mapped = weights.Map(*space, {&whole, 1}, device::Access::kRead);
  if (!mapped.ok()) return mapped.status();
  const uint64_t at = (*space)->address() + place.offset - place.extent.offset + offset;
  const device::CopyOp copy{device::Memory::Own(to), {&weights, at, to.size()}};
  return weights.Copy({&copy, 1}).Wait();
}

std::string EngineView::Read(uint32_t bank, uint64_t offset, uint64_t bytes, uint64_t page) const {
  std::string out;
  while (bytes > 0) {
    const auto it = pages_.find({bank, offset / page});
    if (it == pages_.end()) return {};
    const uint64_t take = std::min(bytes, page - offset % page);
    std::string part(take, '\0');
    const Place& at = it->second;
    struct stat info {};
    const bool file = fstat(at.fd->get(), &info) == 0 && S_ISREG(info.st_mode);
    if (!file && !ReadAt(at, offset % page, std::as_writable_bytes(std::span(part))).ok()) {
      return {};
    }
    if (file &&
        pread(at.fd->get(), part.data(), take, static_cast<off_t>(at.offset + offset % page)) !=
            static_cast<ssize_t>(take)) {
      return {};
    }
    out += part;
    offset += take;
    bytes -= take;
  }
  return out;
}

}  // namespace tangram::store::testing
