// Numbers for the blocks that requests have filled: sets and maps of blocks become flat arrays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/kv/plan.h"

namespace tangram::kv {

class LiveBlocks {
 public:
  explicit LiveBlocks(const Input& input);

  size_t size() const { return blocks_.size(); }
  // Home and id of a block, by number: numbers ascend by (home, block).
  uint32_t home(uint32_t number) const { return homes_[number]; }
  uint32_t block(uint32_t number) const { return blocks_[number]; }
  // The filled blocks of a request, in position order.
  std::span<const uint32_t> Of(size_t request) const {
    return std::span(numbers_).subspan(first_[request], first_[request + 1] - first_[request]);
  }

 private:
  std::vector<uint32_t> homes_, blocks_;  // by number
  std::vector<uint32_t> numbers_;         // of all requests, one after another
  std::vector<size_t> first_;             // [requests + 1], in numbers_
};

}  // namespace tangram::kv
