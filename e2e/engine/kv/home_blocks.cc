#include "e2e/engine/kv/home_blocks.h"

namespace tangram::engine {

uint32_t HomeBlocks::Allocate() {
  const uint32_t block = next_++;
  blocks_[block].references = 1;
  return block;
}

void HomeBlocks::Unref(uint32_t block) {
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || --it->second.references > 0) return;
  if (it->second.key) published_.erase(*it->second.key);
  blocks_.erase(it);
  freed_.push_back(block);
}

void HomeBlocks::Publish(uint32_t block, uint32_t parent, std::span<const uint32_t> tokens) {
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.key) return;
  Key key{parent, {tokens.begin(), tokens.end()}};
  // Two requests may have computed the same block at the same time; the first one is found.
  if (published_.emplace(key, block).second) it->second.key = std::move(key);
}

std::optional<uint32_t> HomeBlocks::Find(uint32_t parent, std::span<const uint32_t> tokens) const {
  const auto it = published_.find({parent, {tokens.begin(), tokens.end()}});
  if (it == published_.end()) return std::nullopt;
  return it->second;
}

}  // namespace tangram::engine
