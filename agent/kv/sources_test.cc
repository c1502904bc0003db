#include "agent/kv/sources.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/kv/testing.h"
#include "agent/kv/testing/small_world.h"

namespace tangram::kv {
namespace {

using testing::Cut;
using testing::MakeWhole;
using testing::RandomInput;
using testing::Rng;

TEST(KvSources, AreAllThatAPlanPullsFromWhereThereIsRoom) {
  size_t pulls = 0, named = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const Input in = RandomInput(rng, 4000, 1);
    const auto whole = MakeWhole(in);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    for (uint32_t rank = 0; rank < in.new_ranks; ++rank) {
      const std::vector<uint32_t> sources = LikelySources(in, rank);
      ASSERT_TRUE(std::is_sorted(sources.begin(), sources.end()));
      named += sources.size();
      for (const Move& move : whole->parts[rank].moves) {
        if (in.new_of_old[move.source_rank] == static_cast<int32_t>(rank)) continue;
        ++pulls;
        ASSERT_TRUE(std::binary_search(sources.begin(), sources.end(), move.source_rank))
            << seed << ": rank " << rank << " pulls from " << move.source_rank;
      }
    }
  }
  EXPECT_GT(pulls, 1000U);
  EXPECT_GT(named, 300U);
}

// Every rank alone, before and after.
Input Alone(uint32_t before, uint32_t after) {
  Input in;
  in.shape = {4, 2, 4, 64};
  std::vector<uint32_t> all(std::max(before, after));
  for (uint32_t rank = 0; rank < all.size(); ++rank) all[rank] = rank;
  in.old_groups = {Cut({all.begin(), all.begin() + before}, 1, 4)};
  in.new_groups = {Cut({all.begin(), all.begin() + after}, 1, 4)};
  for (uint32_t rank = 0; rank < before; ++rank) {
    in.new_of_old.push_back(rank < after ? static_cast<int32_t>(rank) : -1);
  }
  in.new_ranks = after;
  in.ranks.resize(before);
  return in;
}

TEST(KvSources, WhoJoinsNeedsNobodysWhereAllStay) {
  const Input in = Alone(48, 64);
  for (const uint32_t rank : {0U, 47U, 48U, 63U}) EXPECT_TRUE(LikelySources(in, rank).empty());
}

TEST(KvSources, WhoLeavesIsEverybodysSource) {
  const Input in = Alone(4, 3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(LikelySources(in, rank), (std::vector<uint32_t>{3}));
  }
}

TEST(KvSources, WhoShareARequestAreEachOthers) {
  Input in = testing::SmallWorld();  // two alone, who become one group
  EXPECT_EQ(LikelySources(in, 0), (std::vector<uint32_t>{1}));
  EXPECT_EQ(LikelySources(in, 1), (std::vector<uint32_t>{0}));
  std::swap(in.old_groups, in.new_groups);
  EXPECT_EQ(LikelySources(in, 0), (std::vector<uint32_t>{1}));
}

}  // namespace
}  // namespace tangram::kv
