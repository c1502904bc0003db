#include "e2e/engine/kv/home_blocks.h"

#include <algorithm>

namespace tangram::engine {

uint32_t HomeBlocks::Allocate() {
  // Ids wrap after 4 billion blocks of an epoch. No attempt lasts that long, so within an attempt a
  // name identifies one content.
  while (next_ == kRoot || blocks_.contains(next_)) ++next_;
  const uint32_t block = next_++;
  blocks_[block].references = 1;
  return block;
}

void HomeBlocks::Ref(uint32_t block) {
  Block& b = blocks_[block];
  ++b.references;
  if (b.idle) idle_.erase(*std::exchange(b.idle, std::nullopt));
}

void HomeBlocks::Unref(uint32_t block) {
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.references == 0 || --it->second.references > 0) return;
  if (caches_ && it->second.published) {
    it->second.idle = idle_.insert(idle_.end(), block);
  } else {
    Free(it);
  }
}

uint32_t HomeBlocks::Publish(uint32_t block, uint32_t parent, std::span<const uint32_t> tokens,
                             const std::string& salt) {
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.published) return block;
  // Two requests may have computed the same block concurrently; Find returns the first one.
  const auto [at, first] = published_.try_emplace(KeyOf(parent, tokens, salt), block);
  if (first) {
    const auto before = blocks_.find(parent);
    it->second.published = at;
    it->second.hash =
        HashAfter(before == blocks_.end() ? HashOfSalt(salt) : before->second.hash, tokens);
    prefixes_.Here(it->second.hash);
  }
  return at->second;
}

std::optional<uint32_t> HomeBlocks::Find(uint32_t parent, std::span<const uint32_t> tokens,
                                         const std::string& salt) const {
  const auto it = published_.find(KeyOf(parent, tokens, salt));
  if (it == published_.end()) return std::nullopt;
  return it->second;
}

void HomeBlocks::Evict(size_t count) {
  for (; count > 0 && !idle_.empty(); --count) Free(blocks_.find(idle_.front()));
}

bool HomeBlocks::EvictFrom(uint32_t block) {
  if (!Idle(block)) return false;
  // Continuations are idle, too: a request that uses a continuation also references this block.
  while (const std::optional<uint32_t> next = Next(block)) {
    if (!EvictFrom(*next)) return false;
  }
  Free(blocks_.find(block));
  return true;
}

bool HomeBlocks::Idle(uint32_t block) const {
  const auto it = blocks_.find(block);
  return it != blocks_.end() && it->second.idle.has_value();
}

std::vector<Chain> HomeBlocks::IdleChains() const {
  std::vector<Chain> out;
  for (const uint32_t last : idle_) {
    if (Next(last)) continue;
    std::vector<const Key*> keys;  // from the last block to the first
    Chain& chain = out.emplace_back();
    for (uint32_t block = last; block != kRoot; block = std::get<0>(*keys.back())) {
      chain.blocks.push_back(block);
      keys.push_back(&(*blocks_.at(block).published)->first);
    }
    std::reverse(chain.blocks.begin(), chain.blocks.end());
    chain.salt = std::get<1>(*keys.back());
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      const std::vector<uint32_t>& tokens = std::get<2>(**key);
      chain.tokens.insert(chain.tokens.end(), tokens.begin(), tokens.end());
    }
  }
  return out;
}

void HomeBlocks::Adopt(const std::vector<Chain>& chains) {
  for (const Chain& chain : chains) {
    const size_t size = chain.tokens.size() / chain.blocks.size();
    std::vector<uint32_t> blocks;
    for (size_t b = 0; b < chain.blocks.size(); ++b) {
      const uint32_t block = chain.blocks[b];
      Ref(block);
      blocks.push_back(Publish(block, b == 0 ? kRoot : blocks.back(),
                               std::span(chain.tokens).subspan(b * size, size), chain.salt));
      if (blocks.back() == block) continue;
      Ref(blocks.back());
      Unref(block);
    }
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) Unref(*block);
  }
}

std::optional<uint32_t> HomeBlocks::Next(uint32_t block) const {
  const auto it = published_.lower_bound({block, {}, {}});
  if (it == published_.end() || std::get<0>(it->first) != block) return std::nullopt;
  return it->second;
}

void HomeBlocks::Free(std::map<uint32_t, Block>::iterator at) {
  if (at->second.idle) idle_.erase(*at->second.idle);
  if (at->second.published) {
    published_.erase(*at->second.published);
    prefixes_.Gone(at->second.hash);
  }
  freed_.push_back(at->first);
  blocks_.erase(at);
}

}  // namespace tangram::engine
