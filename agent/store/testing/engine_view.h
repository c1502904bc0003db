// An engine's view of its rank's memory. For tests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "agent/device/platform.h"
#include "agent/store/rank_memory.h"

namespace tangram::store::testing {

inline constexpr uint32_t kDenseBank = ~0U;

// One rank's memory as its engine sees it: page by page, from the mappings.
class EngineView {
 public:
  EngineView() = default;
  // `platform`: for importing memory that is not a file.
  explicit EngineView(std::shared_ptr<const device::Platform> platform)
      : platform_(std::move(platform)) {}
  void Map(const EngineMappings& mappings, uint64_t page);
  void Unmap(const std::vector<v1::Mapping>& mappings, uint64_t page);
  bool operator==(const EngineView& other) const { return pages_ == other.pages_; }
  // Bytes of a bank (or, with kDenseBank, of the dense region); empty if some page is not mapped.
  std::string Read(uint32_t bank, uint64_t offset, uint64_t bytes, uint64_t page) const;

 private:
  struct Place {
    SharedFd fd;
    uint64_t file = 0, offset = 0;  // inode of the descriptor, whichever process exported it
    device::Extent extent;          // the extent that contains it
    bool operator==(const Place& other) const {
      return file == other.file && offset == other.offset;
    }
  };
  Status ReadAt(const Place& place, uint64_t offset, std::span<std::byte> to) const;

  std::shared_ptr<const device::Platform> platform_;
  std::map<std::pair<uint32_t, uint64_t>, Place> pages_;  // by (bank, page)
};

}  // namespace tangram::store::testing
