// What an engine sees of its rank's memory. For tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "agent/store/rank_memory.h"

namespace tangram::store::testing {

inline constexpr uint32_t kDenseBank = ~0U;

// One rank's memory as its engine sees it: page by page, from what the mappings said.
class EngineView {
 public:
  void Map(const EngineMappings& mappings, uint64_t page);
  void Unmap(const EngineMappings& mappings, uint64_t page);
  bool operator==(const EngineView&) const = default;
  // Bytes of a bank (or, with kDenseBank, of the dense region); empty if some page is not mapped.
  std::string Read(uint32_t bank, uint64_t offset, uint64_t bytes, uint64_t page) const;

 private:
  struct Place {
    SharedFd fd;
    uint64_t file = 0, offset = 0;  // its inode, whoever shows it
    bool operator==(const Place& other) const {
      return file == other.file && offset == other.offset;
    }
  };
  std::map<std::pair<uint32_t, uint64_t>, Place> pages_;  // by (bank, page)
};

}  // namespace tangram::store::testing
