// The logical KV blocks of one home: references, the prefix tree of full blocks by their tokens
// (for sharing between requests), and idle blocks, which no request uses.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/engine/prefixes/prefixes.h"

namespace tangram::engine {

// Consecutive full blocks from the beginning of a prompt, their tokens, and the salt of the
// requests that may use them (v1::Submit.cache_salt).
struct Chain {
  std::vector<uint32_t> blocks, tokens;
  std::string salt;
};

// A published block without references is idle: it stays, and requests with its tokens can use it.
// A continuation is never referenced without its parent, and is released before it. So no idle
// block was used later than its parent, and eviction in order of last use never orphans a block.
class HomeBlocks {
 public:
  // Parent of a request's first block.
  static constexpr uint32_t kRoot = ~0u;

  // Ids start at `next`. No id of this home is used twice within an epoch, so other ranks can never
  // mistake a new block for an old one. `caches`: blocks may be idle.
  explicit HomeBlocks(uint32_t next = 0, bool caches = true) : caches_(caches), next_(next) {}

  HomeBlocks(HomeBlocks&&) = default;
  HomeBlocks& operator=(HomeBlocks&&) = default;

  // Id of the next new block.
  uint32_t next() const { return next_; }
  // Returns a new block with one reference.
  uint32_t Allocate();
  // Adds a reference to a block, which may be new here (after a flip), or idle.
  void Ref(uint32_t block);
  // Removes a reference; after the last one the block is idle or free. Call it for the last block
  // of a chain first.
  void Unref(uint32_t block);

  // Records that `block`, which has a reference, now holds KV of all of `tokens` after the
  // published `parent`. Returns the block that Find returns from here on: this one, or an earlier
  // one with the same content. A caller with both needs only that one. `salt`: of all
  // continuations; read if parent is kRoot.
  uint32_t Publish(uint32_t block, uint32_t parent, std::span<const uint32_t> tokens,
                   const std::string& salt = {});
  // The published block with exactly these tokens after `parent`, with the same salt.
  std::optional<uint32_t> Find(uint32_t parent, std::span<const uint32_t> tokens,
                               const std::string& salt = {}) const;

  // Frees at most `count` idle blocks, the least recently used first.
  void Evict(size_t count);
  // Frees a block and its continuations if all are idle. Returns whether the block was freed.
  bool EvictFrom(uint32_t block);

  bool Idle(uint32_t block) const;
  uint32_t idle() const { return static_cast<uint32_t>(idle_.size()); }
  // Number of blocks with references.
  uint32_t live() const { return static_cast<uint32_t>(blocks_.size() - idle_.size()); }
  // All idle blocks with their ancestors: one chain for each idle block without continuation, the
  // least recently used first.
  std::vector<Chain> IdleChains() const;
  // Imports chains, in this order. Their blocks may be new here; they are idle unless referenced.
  void Adopt(const std::vector<Chain>& chains);

  // News of published blocks, as CachedPrefixes::Take.
  PrefixNews TakeNews(size_t most, size_t again) { return prefixes_.Take(most, again); }

  // Blocks freed since the last call.
  std::vector<uint32_t> TakeFreed() { return std::exchange(freed_, {}); }

 private:
  using Key = std::tuple<uint32_t, std::string, std::vector<uint32_t>>;  // parent, salt, tokens
  using Published = std::map<Key, uint32_t>;
  struct Block {
    uint32_t references = 0;
    std::optional<Published::iterator> published;
    uint64_t hash = 0;  // of a published block: of all tokens up to its end
    std::optional<std::list<uint32_t>::iterator> idle;
  };

  static Key KeyOf(uint32_t parent, std::span<const uint32_t> tokens, const std::string& salt) {
    return {parent, parent == kRoot ? salt : std::string(), {tokens.begin(), tokens.end()}};
  }
  // A published block that continues this one.
  std::optional<uint32_t> Next(uint32_t block) const;
  void Free(std::map<uint32_t, Block>::iterator at);

  bool caches_ = true;
  uint32_t next_ = 0;
  std::map<uint32_t, Block> blocks_;
  Published published_;
  std::list<uint32_t> idle_;  // the least recently used first
  std::vector<uint32_t> freed_;
  CachedPrefixes prefixes_;
};

}  // namespace tangram::engine
