// The logical KV blocks of one home: references, which full block continues which with what tokens,
// so that requests with a common beginning share them, and those that no request has any more.
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

// Full blocks from the beginning of a prompt on, each after the one before, and their tokens; and
// the salt of the requests that may have them (v1::Submit.cache_salt).
struct Chain {
  std::vector<uint32_t> blocks, tokens;
  std::string salt;
};

// A published block without references is idle: it stays, and whoever comes with its tokens has it.
// What continues a block is never referenced without it, and is given back before it; so no idle
// block was used later than the one that it continues, and eviction in the order of last use leaves
// none without.
class HomeBlocks {
 public:
  // Parent of the first block of a request.
  static constexpr uint32_t kRoot = ~0u;

  // Ids start at `next`: no id of this home is used twice within an epoch, so that other
  // ranks can never mistake a new block for an old one. `caches`: blocks may be idle.
  explicit HomeBlocks(uint32_t next = 0, bool caches = true) : caches_(caches), next_(next) {}

  HomeBlocks(HomeBlocks&&) = default;
  HomeBlocks& operator=(HomeBlocks&&) = default;

  // The id of the next new block.
  uint32_t next() const { return next_; }
  // A new block with one reference.
  uint32_t Allocate();
  // One more reference to a block, which may be new here (after a flip), or idle.
  void Ref(uint32_t block);
  // One reference less; after the last one the block is idle or free. Of a chain: the last block
  // first.
  void Unref(uint32_t block);

  // `block`, which has a reference, now holds KV of all of `tokens` after the published `parent`.
  // Returns the block that is found from here on, this one or one that held the same before: who
  // has both needs but that. `salt`: of all that begins with it; read where parent is kRoot.
  uint32_t Publish(uint32_t block, uint32_t parent, std::span<const uint32_t> tokens,
                   const std::string& salt = {});
  // A published block with exactly these tokens after `parent`, of the same salt.
  std::optional<uint32_t> Find(uint32_t parent, std::span<const uint32_t> tokens,
                               const std::string& salt = {}) const;

  // Frees idle blocks, those that were used least recently first, at most `count`.
  void Evict(size_t count);
  // Frees a block if it is idle, and before it all that continues it. Whether it did.
  bool EvictFrom(uint32_t block);

  bool Idle(uint32_t block) const;
  uint32_t idle() const { return static_cast<uint32_t>(idle_.size()); }
  // With references.
  uint32_t live() const { return static_cast<uint32_t>(blocks_.size() - idle_.size()); }
  // All idle blocks and what they continue: one chain for each that nothing continues, the least
  // recently used one first.
  std::vector<Chain> IdleChains() const;
  // Takes chains over, in this order, of blocks that may be new here: idle but for those that have
  // references.
  void Adopt(const std::vector<Chain>& chains);

  // Of published blocks, as CachedPrefixes::Take.
  PrefixNews TakeNews(size_t most, size_t again) { return prefixes_.Take(most, again); }

  // Blocks freed since the last call.
  std::vector<uint32_t> TakeFreed() { return std::exchange(freed_, {}); }

 private:
  using Key = std::tuple<uint32_t, std::string, std::vector<uint32_t>>;  // parent, salt, tokens
  using Published = std::map<Key, uint32_t>;
  struct Block {
    uint32_t references = 0;
    std::optional<Published::iterator> published;
    uint64_t hash = 0;  // of a published one: of all tokens up to its end
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
  std::list<uint32_t> idle_;  // the least recently used one first
  std::vector<uint32_t> freed_;
  CachedPrefixes prefixes_;
};

}  // namespace tangram::engine
