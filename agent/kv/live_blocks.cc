#include "agent/kv/live_blocks.h"

#include <algorithm>

#include "agent/kv/validate.h"

namespace tangram::kv {

LiveBlocks::LiveBlocks(const Input& in) {
  const size_t homes = in.ranks.size();
  std::vector<std::vector<uint32_t>> of(homes);
  size_t total = 0;
  for (const Request& q : in.requests) {
    const uint32_t filled = BlocksOf(q.length, in.shape.block_tokens);
    of[q.home].insert(of[q.home].end(), q.blocks.begin(), q.blocks.begin() + filled);
    total += filled;
  }
  std::vector<uint32_t> begin;  // first number of each home
  for (uint32_t home = 0; home < homes; ++home) {
    std::vector<uint32_t>& blocks = of[home];
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    begin.push_back(static_cast<uint32_t>(blocks_.size()));
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    homes_.insert(homes_.end(), blocks.size(), home);
  }
  numbers_.reserve(total);
  first_.push_back(0);
  for (const Request& q : in.requests) {
    const std::vector<uint32_t>& blocks = of[q.home];
    size_t next = 0;
    for (uint32_t b = 0; b < BlocksOf(q.length, in.shape.block_tokens); ++b) {
      // Usually the one after the last.
      if (next == blocks.size() || blocks[next] != q.blocks[b]) {
        next = std::lower_bound(blocks.begin(), blocks.end(), q.blocks[b]) - blocks.begin();
      }
      numbers_.push_back(begin[q.home] + static_cast<uint32_t>(next++));
    }
    first_.push_back(numbers_.size());
  }
}

}  // namespace tangram::kv
