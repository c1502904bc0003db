// Blocks of a home against a slow model: random requests that arrive, are computed, end and are
// evicted.
#include "e2e/engine/kv/home_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace tangram::engine {
namespace {

constexpr uint32_t kSize = 2;  // tokens of a block

using Tokens = std::vector<uint32_t>;

// A request: its tokens, and its blocks, of which the first `computed` are published.
struct Holder {
  Tokens tokens;
  std::vector<uint32_t> blocks;
  uint32_t computed = 0;
};

// The expected state, by whole prefixes and without a trie.
class Slow {
 public:
  // The prefix of `count` blocks gets another reference.
  void Take(const Holder& holder, uint32_t count) {
    ++held_[Prefix(holder, count)];
    idle_.erase(Prefix(holder, count));
  }
  void Give(const Holder& holder, uint32_t count, uint64_t when) {
    const Tokens prefix = Prefix(holder, count);
    if (--held_[prefix] > 0) return;
    held_.erase(prefix);
    idle_[prefix] = when;
  }
  bool Has(const Tokens& prefix) const { return held_.contains(prefix) || idle_.contains(prefix); }
  void Evict(size_t count) {
    for (; count > 0 && !idle_.empty(); --count) {
      const auto oldest = std::min_element(idle_.begin(), idle_.end(),
                                           [](auto& a, auto& b) { return a.second < b.second; });
      for (const auto& [other, when] : idle_) {
        EXPECT_FALSE(other.size() > oldest->first.size() &&
                     std::equal(oldest->first.begin(), oldest->first.end(), other.begin()))
            << "a block would go before what continues it";
      }
      idle_.erase(oldest);
    }
  }
  static Tokens Prefix(const Holder& holder, uint32_t count) {
    return {holder.tokens.begin(), holder.tokens.begin() + count * kSize};
  }
  size_t held() const { return held_.size(); }
  // Hashes of all published prefixes, as gateways know them.
  std::set<uint64_t> Hashes() const {
    std::set<uint64_t> out;
    const auto add = [&](const Tokens& prefix) {
      uint64_t hash = HashOfSalt("");
      for (size_t b = 0; b < prefix.size(); b += kSize) {
        hash = HashAfter(hash, std::span(prefix).subspan(b, kSize));
      }
      out.insert(hash);
    };
    for (const auto& [prefix, count] : held_) add(prefix);
    for (const auto& [prefix, when] : idle_) add(prefix);
    return out;
  }
  const std::map<Tokens, uint64_t>& idle() const { return idle_; }

 private:
  std::map<Tokens, uint32_t> held_;
  std::map<Tokens, uint64_t> idle_;  // time of the release
};

// operator/internal/gateway/prefixes_test.go has the same numbers.
TEST(HomeBlocks, MatchesHashesOfGateway) {
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 0xffffffff};
  using Two = std::pair<uint64_t, uint64_t>;
  const auto chain = [&](const std::string& salt) {
    const uint64_t first = HashAfter(HashOfSalt(salt), std::span(tokens).first(4));
    return Two(first, HashAfter(first, std::span(tokens).last(4)));
  };
  EXPECT_EQ(chain(""), Two(0xf29244d744f324b9, 0x9f849e070058bd99));
  EXPECT_EQ(chain("tenant"), Two(0x29d700c2cb6e3429, 0xced6da0b869cf12d));
}

// Blocks cached under one salt, and their continuations, are not found under another salt.
TEST(HomeBlocks, SeparatesSalts) {
  HomeBlocks blocks;
  const Tokens a{1, 2}, b{3, 4};
  std::vector<uint32_t> mine, theirs;
  for (auto [out, salt] : {std::pair(&mine, "m"), std::pair(&theirs, "t")}) {
    out->push_back(blocks.Allocate());
    EXPECT_EQ(blocks.Publish(out->back(), HomeBlocks::kRoot, a, salt), out->back());
    out->push_back(blocks.Allocate());
    EXPECT_EQ(blocks.Publish(out->back(), out->front(), b, salt), out->back());
  }
  EXPECT_EQ(blocks.Find(HomeBlocks::kRoot, a, "m"), mine[0]);
  EXPECT_EQ(blocks.Find(HomeBlocks::kRoot, a, "t"), theirs[0]);
  EXPECT_FALSE(blocks.Find(HomeBlocks::kRoot, a));
  EXPECT_EQ(blocks.Find(theirs[0], b, "whatever"), theirs[1]);
  for (const auto& list : {mine, theirs}) {
    blocks.Unref(list[1]);
    blocks.Unref(list[0]);
  }
  HomeBlocks after(100);  // a flip keeps them separate
  std::vector<Chain> chains = blocks.IdleChains();
  ASSERT_EQ(chains.size(), 2u);
  EXPECT_EQ(chains[0].salt, "m");
  EXPECT_EQ(chains[0].tokens, (Tokens{1, 2, 3, 4}));
  after.Adopt(chains);
  EXPECT_EQ(after.Find(HomeBlocks::kRoot, a, "t"), theirs[0]);
  EXPECT_FALSE(after.Find(HomeBlocks::kRoot, a));
  EXPECT_EQ(blocks.TakeNews(100, 0).here, after.TakeNews(100, 0).here) << "under the same hashes";
}

class HomeBlocksWalk : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint32_t Draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // Finds as many blocks of `tokens` as possible, one by one.
  std::vector<uint32_t> Found(const Tokens& tokens) const {
    std::vector<uint32_t> out;
    while ((out.size() + 1) * kSize <= tokens.size()) {
      const auto next = blocks_.Find(out.empty() ? HomeBlocks::kRoot : out.back(),
                                     std::span(tokens).subspan(out.size() * kSize, kSize));
      if (!next) break;
      out.push_back(*next);
    }
    return out;
  }
  void Come() {
    Holder& holder = holders_.emplace_back();
    for (uint32_t i = kSize * (1 + Draw(5)); i > 0; --i) holder.tokens.push_back(Draw(2));
    holder.blocks = Found(holder.tokens);
    for (const uint32_t block : holder.blocks) {
      blocks_.Ref(block);
      slow_.Take(holder, ++holder.computed);
    }
    for (uint32_t b = holder.computed; b < holder.tokens.size() / kSize; ++b) {
      holder.blocks.push_back(blocks_.Allocate());
      EXPECT_TRUE(ids_.insert(holder.blocks.back()).second) << "an id twice";
    }
  }
  void Compute(Holder& holder) {
    if (holder.computed == holder.blocks.size()) return;
    const uint32_t b = holder.computed++;
    const uint32_t same =
        blocks_.Publish(holder.blocks[b], b == 0 ? HomeBlocks::kRoot : holder.blocks[b - 1],
                        std::span(holder.tokens).subspan(b * kSize, kSize));
    EXPECT_EQ(same != holder.blocks[b], slow_.Has(Slow::Prefix(holder, b + 1)));
    if (same != holder.blocks[b]) {
      blocks_.Ref(same);
      blocks_.Unref(std::exchange(holder.blocks[b], same));
    }
    slow_.Take(holder, b + 1);
  }
  void End(size_t i) {
    Holder& holder = holders_[i];
    for (size_t b = holder.blocks.size(); b-- > 0;) {
      blocks_.Unref(holder.blocks[b]);
      if (b < holder.computed) slow_.Give(holder, static_cast<uint32_t>(b) + 1, ++clock_);
    }
    holders_.erase(holders_.begin() + static_cast<long>(i));
  }
  void Check() {
    uint32_t own = 0;  // not published yet
    for (const Holder& holder : holders_) {
      own += static_cast<uint32_t>(holder.blocks.size()) - holder.computed;
    }
    ASSERT_EQ(blocks_.live(), slow_.held() + own);
    ASSERT_EQ(blocks_.idle(), slow_.idle().size());
    for (const uint32_t block : blocks_.TakeFreed()) {
      EXPECT_TRUE(freed_.insert(block).second) << block << " is freed twice";
    }
    for (const Holder& holder : holders_) {
      for (const uint32_t block : holder.blocks) EXPECT_FALSE(freed_.contains(block));
    }
    // Every possible prefix is found if and only if it is published, as the right block.
    for (uint32_t bits = 0; bits < 1 << 8; ++bits) {
      Tokens tokens;
      for (uint32_t i = 0; i < 8; ++i) tokens.push_back(bits >> i & 1);
      const std::vector<uint32_t> found = Found(tokens);
      uint32_t there = 0;
      while (there < 4 && slow_.Has({tokens.begin(), tokens.begin() + (there + 1) * kSize})) {
        ++there;
      }
      ASSERT_EQ(found.size(), there);
      for (uint32_t b = 0; b < there; ++b) {
        EXPECT_FALSE(freed_.contains(found[b])) << "a stale block";
        const Tokens prefix(tokens.begin(), tokens.begin() + (b + 1) * kSize);
        EXPECT_EQ(blocks_.Idle(found[b]), slow_.idle().contains(prefix));
      }
    }
    CheckChains();
  }
  // The chains are all idle blocks, each with its ancestors, by last use.
  void CheckChains() {
    std::set<Tokens> told;
    uint64_t last = 0;
    for (const Chain& chain : blocks_.IdleChains()) {
      ASSERT_EQ(chain.blocks.size() * kSize, chain.tokens.size());
      EXPECT_EQ(Found(chain.tokens), chain.blocks);
      const uint64_t used = slow_.idle().at(chain.tokens);
      EXPECT_GT(used, last);
      last = used;
      for (size_t b = 1; b <= chain.blocks.size(); ++b) {
        const Tokens prefix(chain.tokens.begin(),
                            chain.tokens.begin() + static_cast<long>(b * kSize));
        if (slow_.idle().contains(prefix)) told.insert(prefix);
      }
    }
    EXPECT_EQ(told.size(), slow_.idle().size());
  }

  // A gateway that receives the news in parts.
  void Hear(size_t most, size_t again) {
    const PrefixNews news = blocks_.TakeNews(most, again);
    EXPECT_LE(news.here.size() + news.gone.size(), most + again);
    for (const uint64_t hash : news.gone) heard_.erase(hash);
    heard_.insert(news.here.begin(), news.here.end());
  }

  std::mt19937 random_{GetParam()};
  std::set<uint64_t> heard_;
  HomeBlocks blocks_{GetParam() % 3 == 0 ? UINT32_MAX - 9 : 7};  // some ids wrap
  Slow slow_;
  std::vector<Holder> holders_;
  std::set<uint32_t> ids_, freed_;
  uint64_t clock_ = 0;
};

TEST_P(HomeBlocksWalk, MatchesSlowReference) {
  for (uint32_t round = 0; round < 200; ++round) {
    switch (Draw(6)) {
      case 0:
        if (holders_.size() < 6) Come();
        break;
      case 1:
        if (!holders_.empty()) End(Draw(static_cast<uint32_t>(holders_.size())));
        break;
      case 2: {
        const size_t count = Draw(4);
        blocks_.Evict(count);
        slow_.Evict(count);
        break;
      }
      default:
        if (!holders_.empty()) Compute(holders_[Draw(static_cast<uint32_t>(holders_.size()))]);
    }
    ASSERT_NO_FATAL_FAILURE(Check()) << "round " << round;
    Hear(Draw(3), Draw(3));
  }
  Hear(1000, 0);
  EXPECT_EQ(heard_, slow_.Hashes());
  heard_.clear();  // one that connects now, and receives a few each time
  for (int i = 0; i < 100; ++i) Hear(0, 3);
  EXPECT_EQ(heard_, slow_.Hashes());
  while (!holders_.empty()) End(0);
  EXPECT_EQ(blocks_.live(), 0u);
  blocks_.Evict(1000);
  (void)blocks_.TakeFreed();
  EXPECT_EQ(blocks_.idle(), 0u);
  Hear(1000, 1000);
  EXPECT_TRUE(heard_.empty());
}

// As in a flip: the chains migrate to a home that has blocks already, some with the same tokens.
TEST_P(HomeBlocksWalk, MergesAdoptedChainsWithExistingBlocks) {
  for (uint32_t i = 0; i < 40; ++i) {
    Come();
    while (holders_[0].computed < holders_[0].blocks.size()) Compute(holders_[0]);
    End(0);
  }
  const std::vector<Chain> chains = blocks_.IdleChains();
  HomeBlocks other(10000);
  const Tokens& first = chains[0].tokens;
  const uint32_t own = other.Allocate();
  EXPECT_EQ(other.Publish(own, HomeBlocks::kRoot, std::span(first).first(kSize)), own);
  other.Adopt(chains);
  EXPECT_EQ(other.live(), 1u);
  EXPECT_EQ(other.idle(), blocks_.idle() - 1) << "of two with the same tokens one stays";
  EXPECT_TRUE(std::ranges::count(other.TakeFreed(), chains[0].blocks[0]) > 0);
  EXPECT_EQ(other.Find(HomeBlocks::kRoot, std::span(first).first(kSize)), own);
  std::set<Tokens> before, after;
  for (const Chain& chain : chains) before.insert(chain.tokens);
  for (const Chain& chain : other.IdleChains()) {
    after.insert(chain.tokens);
    if (chain.tokens.size() > kSize &&
        std::equal(first.begin(), first.begin() + kSize, chain.tokens.begin())) {
      EXPECT_EQ(chain.blocks[0], own);
    }
  }
  EXPECT_EQ(after, before);
  // All of it is evicted in some order, and a subtree in one call.
  EXPECT_FALSE(other.EvictFrom(own)) << "it has a reference";
  other.Unref(own);
  EXPECT_TRUE(other.EvictFrom(own));
  EXPECT_FALSE(other.Find(HomeBlocks::kRoot, std::span(first).first(kSize)));
  for (const Chain& chain : other.IdleChains()) {
    EXPECT_FALSE(std::equal(first.begin(), first.begin() + kSize, chain.tokens.begin()));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, HomeBlocksWalk, ::testing::Range(0u, 12u));

TEST(HomeBlocksTest, DoesNotEvictReusedBlock) {
  HomeBlocks blocks;
  const Tokens tokens = {1, 2};
  const uint32_t block = blocks.Allocate();
  (void)blocks.Publish(block, HomeBlocks::kRoot, tokens);
  blocks.Unref(block);
  EXPECT_EQ(blocks.idle(), 1u);
  blocks.Ref(block);
  EXPECT_EQ(blocks.idle(), 0u);
  EXPECT_EQ(blocks.live(), 1u);
  blocks.Evict(1);
  EXPECT_EQ(blocks.Find(HomeBlocks::kRoot, tokens), block);
  EXPECT_TRUE(blocks.TakeFreed().empty());
}

TEST(HomeBlocksTest, FreesAtLastReferenceWithoutCache) {
  HomeBlocks blocks(0, false);
  const uint32_t block = blocks.Allocate();
  const Tokens tokens = {1, 2};
  (void)blocks.Publish(block, HomeBlocks::kRoot, tokens);
  blocks.Unref(block);
  EXPECT_EQ(blocks.idle(), 0u);
  EXPECT_EQ(blocks.TakeFreed(), std::vector<uint32_t>{block});
  EXPECT_FALSE(blocks.Find(HomeBlocks::kRoot, tokens));
}

}  // namespace
}  // namespace tangram::engine
