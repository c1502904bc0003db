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
        pages_[{mapping.dense() ? kDenseBank : mapping.bank(), at++}] = {fd, info.st_ino,
                                                                         extent.offset() + b};
      }
    }
  }
}

void EngineView::Unmap(const EngineMappings& mappings, uint64_t page) {
  for (const v1::Mapping& mapping : mappings.mappings) {
    uint64_t at = mapping.offset() / page;
    for (const v1::Extent& extent : mapping.extents()) {
      for (uint64_t b = 0; b < extent.length(); b += page) {
        pages_.erase({mapping.dense() ? kDenseBank : mapping.bank(), at++});
      }
    }
  }
}

std::string EngineView::Read(uint32_t bank, uint64_t offset, uint64_t bytes, uint64_t page) const {
  std::string out;
  while (bytes > 0) {
    const auto it = pages_.find({bank, offset / page});
    if (it == pages_.end()) return {};
    const uint64_t take = std::min(bytes, page - offset % page);
    std::string part(take, '\0');
    const Place& at = it->second;
    if (pread(at.fd->get(), part.data(), take, static_cast<off_t>(at.offset + offset % page)) !=
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
