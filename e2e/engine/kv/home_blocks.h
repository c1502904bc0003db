// The logical KV blocks of one home: references, and which full block continues which with
// what tokens, so that live requests with a common beginning share them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tangram::engine {

class HomeBlocks {
 public:
  // Parent of the first block of a request.
  static constexpr uint32_t kRoot = ~0u;

  // Ids start at `next`: no id of this home is used twice within an epoch, so that other
  // ranks can never mistake a new block for an old one.
  explicit HomeBlocks(uint32_t next = 0) : next_(next) {}

  // The id of the next new block.
  uint32_t next() const { return next_; }
  // A new block with one reference.
  uint32_t Allocate();
  // One more reference to a block, which may be new here (after a flip).
  void Ref(uint32_t block) { ++blocks_[block].references; }
  // One reference less; the last one frees the block.
  void Unref(uint32_t block);

  // `block` now holds KV of all of `tokens` after `parent`, and may be shared.
  void Publish(uint32_t block, uint32_t parent, std::span<const uint32_t> tokens);
  // A live published block with exactly these tokens after `parent`.
  std::optional<uint32_t> Find(uint32_t parent, std::span<const uint32_t> tokens) const;

  uint32_t live() const { return static_cast<uint32_t>(blocks_.size()); }
  // Blocks freed since the last call.
  std::vector<uint32_t> TakeFreed() { return std::exchange(freed_, {}); }

 private:
  using Key = std::pair<uint32_t, std::vector<uint32_t>>;
  struct Block {
    uint32_t references = 0;
    std::optional<Key> key;
  };

  uint32_t next_ = 0;
  std::map<uint32_t, Block> blocks_;
  std::map<Key, uint32_t> published_;
  std::vector<uint32_t> freed_;
};

}  // namespace tangram::engine
