// Copies of pages: which of them a flip uses, and the ownership of their pages meanwhile.
#include "e2e/engine/kv/ahead_pages.h"

#include <gtest/gtest.h>

#include "e2e/engine/kv/page_store.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kBlock = 16, kLayers = 4, kPages = 32;

// Two ranks with one head each before and after: rank 1 fetches the KV of rank 0's home.
class Copies : public ::testing::Test {
 protected:
  Copies() : store_(kPages) {
    const std::vector<kv::LayerGroups> together(kLayers, {{{0, 1}, {0, 1, 2}}});
    held_ = HeldMap(together, {2, 2, kBlock, 64}, 2);
  }
  // Takes pages for a whole lane of a block of home 0, as rank 1 will have it.
  std::vector<kv::Strip> Take(uint32_t block, uint32_t tokens) {
    return store_.TakeAhead(0, block, {0, block, 1, 0, kLayers, 0, 1}, tokens);
  }
  // Rank 1 after a flip that moves `block` of home 0, with `tokens` filled tokens, renamed to
  // `now`.
  Result<PageStore> After(uint32_t block, uint32_t now, uint32_t tokens) {
    kv::RankPlan plan;
    plan.moves.push_back({0, now, 1, 0, kLayers, 0, 100, 1, tokens});
    return store_.After(plan, {{{now, 0, block, tokens}}}, held_, 1, &copies_, &ready_);
  }

  HeldMap held_;
  PageStore store_;
  std::vector<kv::PageCopy> copies_;
  uint64_t ready_ = 0;
};

TEST_F(Copies, AreUsedInPlace) {
  const std::vector<kv::Strip> strips = Take(5, kBlock);
  ASSERT_EQ(strips.size(), 1u);
  EXPECT_EQ(store_.free(), kPages) << "whoever needs them gets them";
  EXPECT_TRUE(store_.Audit().ok());
  store_.Came(true);
  const auto after = After(5, 9, kBlock);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(ready_, kLayers);
  ASSERT_EQ(after->Find(0, 9).size(), 1u);
  EXPECT_EQ(after->Find(0, 9)[0].page, strips[0].page);
  EXPECT_EQ(after->free(), kPages - kLayers);
  EXPECT_TRUE(after->Audit().ok());
}

// Name and fill decide whether a copy matches the flip's block: any other is fetched again.
TEST_F(Copies, AreNotUsedForAnotherBlockOrFill) {
  ASSERT_FALSE(Take(5, kBlock).empty());
  store_.Came(true);
  for (const auto& [block, tokens] : {std::pair(6u, kBlock), std::pair(5u, kBlock - 1)}) {
    const auto after = After(block, 9, tokens);
    ASSERT_TRUE(after.ok()) << after.status().message();
    EXPECT_EQ(ready_, 0u) << "block " << block << ", " << tokens << " tokens";
    ASSERT_EQ(copies_.size(), 1u);
    EXPECT_EQ(copies_[0].pages, kLayers);
  }
}

TEST_F(Copies, AreDroppedWhenBlockIsFreed) {
  ASSERT_FALSE(Take(5, kBlock).empty());
  store_.Drop(0, 5);  // while its copy is in progress
  EXPECT_EQ(store_.ahead(), kLayers) << "somebody still writes there";
  store_.Came(true);
  EXPECT_EQ(store_.ahead(), 0u);
  ASSERT_FALSE(Take(6, kBlock).empty());
  store_.Came(true);
  store_.Drop(0, 6);
  EXPECT_EQ(store_.ahead(), 0u);
  EXPECT_TRUE(store_.Audit().ok());
}

TEST_F(Copies, AreDroppedWhenFailed) {
  ASSERT_FALSE(Take(5, kBlock).empty());
  store_.Came(false);
  EXPECT_EQ(store_.ahead(), 0u);
  ASSERT_TRUE(After(5, 9, kBlock).ok());
  EXPECT_EQ(ready_, 0u);
}

TEST_F(Copies, AreEvictedWhenBlockNeedsPages) {
  for (uint32_t block = 0; block < kPages / kLayers; ++block) {
    ASSERT_FALSE(Take(block, kBlock).empty());
  }
  EXPECT_TRUE(Take(100, kBlock).empty()) << "there is no more room";
  EXPECT_TRUE(store_.MustWait(kLayers));
  EXPECT_FALSE(store_.Ensure(1, 0, held_, 1).ok()) << "pages that are being written";
  store_.Came(true);
  EXPECT_FALSE(store_.MustWait(kLayers));
  const auto strips = store_.Ensure(1, 0, held_, 1);
  ASSERT_TRUE(strips.ok()) << strips.status().message();
  EXPECT_EQ(store_.free(), kPages - kLayers);
  EXPECT_TRUE(store_.Audit().ok());
}

// A flip without room for uncopied blocks takes the pages of copies that it does not use, and keeps
// the copies that it uses.
TEST_F(Copies, AreEvictedForFlipWhenUnused) {
  for (uint32_t block = 0; block < kPages / kLayers; ++block) {
    ASSERT_FALSE(Take(block, kBlock).empty());
  }
  store_.Came(true);
  kv::RankPlan plan;
  PageStore::Placed placed(1);
  for (uint32_t block = 0; block < 3; ++block) {
    plan.moves.push_back({0, block, 1, 0, kLayers, 0, 100 + 10 * block, 1, kBlock});
    // The third block was not copied.
    placed[0].push_back({block, 0, block == 2 ? 50 : block, kBlock});
  }
  const auto after = store_.After(plan, placed, held_, 1, &copies_, &ready_);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_EQ(ready_, 2 * kLayers);
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_TRUE(after->Audit().ok());
  EXPECT_EQ(after->free(), kPages - 3 * kLayers);
}

// One block of two new homes on a rank becomes two blocks: one of them is copied again.
TEST_F(Copies, AreUsedForOneBlockEach) {
  ASSERT_FALSE(Take(5, kBlock).empty());
  store_.Came(true);
  kv::RankPlan plan;
  plan.moves.push_back({0, 1, 1, 0, kLayers, 0, 100, 1, kBlock});
  plan.moves.push_back({1, 1, 1, 0, kLayers, 0, 100, 1, kBlock});
  const auto after =
      store_.After(plan, {{{1, 0, 5, kBlock}}, {{1, 0, 5, kBlock}}}, held_, 1, &copies_, &ready_);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_EQ(ready_, kLayers);
  EXPECT_EQ(copies_.size(), 1u);
  EXPECT_TRUE(after->Audit().ok());
}

// A store that replaces one with pages being written allocates none of these pages.
TEST_F(Copies, KeepPagesInNextStoreWhileBeingWritten) {
  const std::vector<kv::Strip> strips = Take(5, kBlock);
  PageStore next(kPages);
  ASSERT_TRUE(next.TakeOver(store_).ok());
  EXPECT_TRUE(next.Audit().ok());
  for (uint32_t block = 0; block + 1 < kPages / kLayers; ++block) {
    const auto taken = next.Ensure(1, block, held_, 1);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    for (const kv::Strip& strip : *taken) {
      EXPECT_TRUE(strip.page + strip.layers <= strips[0].page ||
                  strip.page >= strips[0].page + strips[0].layers);
    }
  }
  EXPECT_TRUE(next.Writing());
  next.Came(true);
  EXPECT_EQ(next.ahead(), 0u);
  EXPECT_TRUE(next.Audit().ok());
}

}  // namespace
}  // namespace tangram::engine
