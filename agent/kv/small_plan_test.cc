// MakePlan on worlds small enough to write down the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/kv/cover.h"
#include "agent/kv/testing/small_world.h"
#include "agent/kv/validate.h"

namespace tangram::kv {
namespace {

using testing::OneLayer;
using testing::Whole;

Whole Make(const Input& in) {
  Result<Whole> whole = testing::MakeWhole(in);
  EXPECT_TRUE(whole.ok()) << whole.status().message();
  if (!whole.ok()) return {};
  EXPECT_EQ(testing::CheckWhole(in, *whole).message(), "");
  return *whole;
}

std::vector<uint32_t> Homes(const Whole& whole) {
  std::vector<uint32_t> out;
  for (const Placement& p : whole.plan.requests) out.push_back(p.home);
  return out;
}

TEST(KvSmallPlan, MatchesHandWrittenPlan) {
  const Whole want = testing::SmallPlan(), all = Make(testing::SmallWorld());
  ASSERT_EQ(all.parts.size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(all.parts[r].kept, want.parts[r].kept) << r;
    EXPECT_EQ(all.parts[r].moves, want.parts[r].moves) << r;
    EXPECT_EQ(all.parts[r].freed, want.parts[r].freed) << r;
    EXPECT_EQ(all.parts[r].moved_bytes, want.parts[r].moved_bytes) << r;
    EXPECT_EQ(all.parts[r].local_bytes, 0u) << r;
    EXPECT_EQ(all.plan.blocks[r], want.plan.blocks[r]) << r;
  }
  EXPECT_EQ(all.plan.next_block, want.plan.next_block);
  EXPECT_TRUE(all.plan.shared.empty());
  EXPECT_EQ(all.plan.requests_moved, 0u);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 1, 0}));
}

TEST(KvSmallPlan, ReturnsKvHeadsByGroupPosition) {
  const Shape shape{12, 4, 4, 64};  // three query heads read one KV head
  const Group group{{0, 1, 2, 3}, {0, 4, 6, 6, 12}};
  using Heads = std::pair<uint32_t, uint32_t>;
  EXPECT_EQ(HeldKvHeads(shape, group, 0), Heads(0, 2));
  EXPECT_EQ(HeldKvHeads(shape, group, 1), Heads(1, 2));
  EXPECT_EQ(HeldKvHeads(shape, group, 2), Heads(0, 0)) << "no query head";
  EXPECT_EQ(HeldKvHeads(shape, group, 3), Heads(2, 4));
}

// Ranks 0 and 1 unchanged and a joiner, rank 2, each alone.
Input Three() {
  Input in = testing::SmallWorld();
  in.new_ranks = 3;
  in.new_groups = {{{{0}, {0, 4}}, {{1}, {0, 4}}, {{2}, {0, 4}}}};
  in.joined_pages = {0, 0, 16};
  return in;
}

TEST(KvSmallPlan, MovesOnlyRequestWithoutRoomAtHome) {
  Input in = Three();
  // "a" may grow to 3 blocks of 2 pages; rank 0 has room for 2.
  in.ranks[0] = {5, 0, in.ranks[0].strips};
  in.ranks[0].total_pages = 6;
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1, 0}));
  in.ranks[0].total_pages = 5;
  in.ranks[0].strips[1].page = 4;  // not 5
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{2, 1, 0}));
  EXPECT_EQ(all.plan.requests_moved, 1u);
  // The block that "a" and "c" shared exists on both ranks now; "c" keeps the original.
  EXPECT_EQ(all.parts[0].kept.size(), 2u);
  EXPECT_EQ(all.parts[2].moves.size(), 4u);
  EXPECT_EQ(all.plan.requests[0].blocks, (std::vector<uint32_t>{0, 1}))
      << "the lowest free numbers";
  EXPECT_EQ(all.plan.requests[2].blocks, (std::vector<uint32_t>{7})) << "its own number";
  EXPECT_EQ(all.plan.next_block, (std::vector<uint32_t>{8, 8, 2}));
}

TEST(KvSmallPlan, DoesNotReuseNumbersOfStayingBlocks) {
  Input in = testing::SmallWorld();
  // Rank 1 leaves, and its request moves to rank 0, where 0 and 2 are taken.
  in.new_of_old = {0, -1};
  in.new_ranks = 1;
  in.new_groups = {{{{0}, {0, 4}}}};
  in.requests[0].blocks = {0, 2};
  in.requests[2].blocks = {0};
  in.ranks[0].strips = OneLayer({{0, 0, 0, {3, 5}}, {0, 2, 0, {1, 2}}});
  in.requests[1] = {"b", 1, 10, 12, {5, 6, 7}};
  in.ranks[1] = {16, 10, OneLayer({{1, 5, 0, {0, 1}}, {1, 6, 0, {2, 3}}, {1, 7, 0, {4, 5}}})};
  const Whole all = Make(in);
  EXPECT_EQ(all.plan.requests[0].blocks, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(all.plan.requests[1].blocks, (std::vector<uint32_t>{1, 3, 4}));
  EXPECT_EQ(all.plan.next_block, (std::vector<uint32_t>{5}));
  EXPECT_EQ(all.plan.requests_moved, 1u);
}

// Ranks 0 and 1 are one group, and each holds one head of the requests of home 1. Rank 1 leaves,
// and another joins in its place. The longer request goes to the new home 1, the emptier one, the
// other to home 0, and both need block 7 there.
Input TwoHomesOfOneBlock() {
  Input in;
  in.shape = {4, 2, 4, 64};
  in.old_groups = {{{{0, 1}, {0, 2, 4}}}};
  in.new_groups = {{{{0, 1}, {0, 2, 4}}}};
  in.new_of_old = {0, -1};
  in.new_ranks = 2;
  in.joined_pages = {0, 32};
  in.requests = {{"a", 1, 6, 6, {7, 9}}, {"c", 1, 4, 4, {7}}, {"z", 0, 0, 4, {}}};
  in.ranks.resize(2);
  in.ranks[0] = {32, 20, OneLayer({{1, 7, 0, {3}}, {1, 9, 0, {1}}})};
  in.ranks[1] = {32, 20, OneLayer({{1, 7, 1, {4}}, {1, 9, 1, {2}}})};
  return in;
}

TEST(KvSmallPlan, KeepsSharedBlockAtOneHomeAndCopiesItForOther) {
  const Whole all = Make(TwoHomesOfOneBlock());
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{1, 0, 0}));
  EXPECT_EQ(all.parts[0].kept,
            (std::vector<Keep>{{1, 0, 0, 0, 1, 3, 1, 4}, {1, 1, 0, 0, 1, 1, 1, 2}}));
  EXPECT_EQ(all.parts[0].moves, (std::vector<Move>{{0, 0, 0, 0, 1, 0, 3, 1, 4}})) << "a local copy";
  EXPECT_EQ(all.parts[1].moves, (std::vector<Move>{{0, 0, 1, 0, 1, 1, 4, 1, 4},
                                                   {1, 0, 1, 0, 1, 1, 4, 1, 4},
                                                   {1, 1, 1, 0, 1, 1, 2, 1, 2}}));
  EXPECT_EQ(all.parts[0].local_bytes, 4u * 64);
  EXPECT_EQ(all.parts[0].moved_bytes, 4u * 64);
  EXPECT_EQ(all.parts[1].moved_bytes, (4u + 4 + 2) * 64);
  EXPECT_EQ(all.plan.requests_moved, 2u);
}

// Home 0 is ranks 0 and 1 in layer 0, and ranks 0 and 2 in layer 1; home 1 shares the former, and
// has ranks 1 and 3 in layer 1. No rank changes. Rank 2 is full, so growing requests must move from
// home 0 to home 1. Home 1 also needs block 7, and home 0 keeps its pages there.
Input TwoHomesOfOneGroup() {
  Input in;
  in.shape = {4, 2, 4, 64};
  in.old_groups = {{{{0, 1}, {0, 2, 4}}, {{2, 3}, {0, 2, 4}}},
                   {{{0, 2}, {0, 2, 4}}, {{1, 3}, {0, 2, 4}}}};
  in.new_groups = in.old_groups;
  in.new_of_old = {0, 1, 2, 3};
  in.new_ranks = 4;
  in.requests = {{"a", 0, 4, 4, {7}}, {"b", 0, 4, 8, {7}}, {"c", 0, 4, 8, {7}}};
  in.ranks.resize(4);
  // Their maximum: block 7 of home 0, the copy for home 1, a block each for "b", "c".
  in.ranks[0] = {5, 1, {{0, 7, 0, 0, 2, 0, 1}}};
  in.ranks[1] = {7, 2, {{0, 7, 1, 0, 1, 0, 1}}};
  in.ranks[2] = {1, 0, {{0, 7, 1, 1, 1, 0, 1}}};
  in.ranks[3] = {3, 1, {}};
  return in;
}

TEST(KvSmallPlan, DoesNotCountPagesKeptByAnotherHomeAsRoom) {
  const Whole all = Make(TwoHomesOfOneGroup());
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 1, 1}));
  EXPECT_EQ(all.plan.shared.size(), 1u);
  for (const uint32_t rank : {0, 1, 3}) {
    Input in = TwoHomesOfOneGroup();
    --in.ranks[rank].total_pages;
    EXPECT_EQ(testing::MakeWhole(in).status().code(), Code::kNoMemory) << rank;
    in = TwoHomesOfOneGroup();
    --in.ranks[rank].free_pages;
    EXPECT_EQ(testing::MakeWhole(in).status().code(), Code::kNoMemory) << rank;
  }
}

TEST(KvSmallPlan, AcceptsUnorderedAndPartlyFilledBlocks) {
  Input in = testing::SmallWorld();
  in.requests[0].blocks = {9, 7};
  in.requests[2] = {"c", 0, 2, 4, {9}};
  std::swap(in.requests[0], in.requests[2]);
  const Whole all = Make(in);
  EXPECT_EQ(all.plan.requests[0].blocks, (std::vector<uint32_t>{9}));
  EXPECT_EQ(all.plan.requests[2].blocks, (std::vector<uint32_t>{9, 7}));
}

// In layer 1 each rank is alone after the flip, and in layer 0 the two exchange positions. Rank 0
// has no pages that home 1 needs there, so home 1 takes none over, and home 0 keeps its pages.
TEST(KvSmallPlan, DoesNotHandOverBlockToHomeWithoutNeed) {
  Input in = TwoHomesOfOneBlock();
  in.old_groups.push_back(in.old_groups[0]);
  in.new_groups = {{{{1, 0}, {0, 2, 4}}}, {{{0}, {0, 4}}, {{1}, {0, 4}}}};
  // The strips of both layers; rank 0 has KV head 0, rank 1 the other.
  in.ranks[0].strips = {{1, 7, 0, 0, 2, 3, 2}, {1, 9, 0, 0, 2, 1, 5}};
  in.ranks[1].strips = {{1, 7, 1, 0, 2, 4, 1}, {1, 9, 1, 0, 2, 2, 4}};
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{1, 0, 0}));
  EXPECT_EQ(all.parts[0].kept, (std::vector<Keep>{{0, 0, 0, 1, 1, 5, 2, 4}}));
  EXPECT_EQ(all.parts[0].local_bytes, 0u);
}

// Arriving blocks get the lowest free numbers, the home's own blocks keep theirs: all are ordered
// by number.
TEST(KvSmallPlan, MovesPagesInOrderOfNewNumbers) {
  Input in = testing::SmallWorld();
  in.old_groups[0].push_back({{2}, {0, 4}});
  in.new_of_old.push_back(-1);
  in.requests[1].reserved = 40;  // so that "d" goes to home 0
  in.requests.push_back({"d", 2, 4, 4, {7}});
  in.ranks.push_back({16, 14, OneLayer({{2, 7, 0, {2, 6}}})});
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 1, 0, 0}));
  EXPECT_EQ(all.parts[1].moves, (std::vector<Move>{{0, 0, 1, 0, 1, 2, 6, 1, 4},
                                                   {0, 7, 1, 0, 1, 0, 5, 1, 4},
                                                   {0, 9, 1, 0, 1, 0, 2, 1, 2}}));
}

// The only head is on all ranks of the old group, in either order.
TEST(KvSmallPlan, AlternatesReplicasFromLowestRank) {
  const std::vector<std::vector<uint32_t>> orders = {{0, 1}, {1, 0}};
  for (const std::vector<uint32_t>& ranks : orders) {
    Input in;
    in.shape = {4, 1, 4, 64};
    in.old_groups = {{{ranks, {0, 2, 4}}}};
    in.new_groups = {{{{0}, {0, 4}}}};
    in.new_of_old = {-1, -1};
    in.new_ranks = 1;
    in.joined_pages = {16};
    in.requests = {{"a", 0, 12, 12, {1, 2, 3}}};
    in.ranks.resize(2);
    for (RankState& rank : in.ranks) {
      rank = {16, 10, OneLayer({{0, 1, 0, {7}}, {0, 2, 0, {8}}, {0, 3, 0, {9}}})};
    }
    std::vector<uint32_t> sources;
    const Whole all = Make(in);
    for (const Move& m : all.parts[0].moves) sources.push_back(m.source_rank);
    EXPECT_EQ(sources, (std::vector<uint32_t>{0, 1, 0})) << ranks[0];
  }
}

// Without layers every rank is in a group of each.
TEST(KvSmallPlan, PlansNoPagesWithoutLayers) {
  Input in = Three();
  in.old_groups.clear();
  in.new_groups.clear();
  in.new_of_old = {0, -1};
  for (RankState& rank : in.ranks) rank.strips.clear();
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 1, 0}));
  for (const RankPlan& part : all.parts) EXPECT_EQ(part.moved_bytes, 0u);
}

// Rank 1 leaves. "b" goes to the rank with the smallest share of its pages in use, then with the
// fewest blocks, then with the lowest number.
TEST(KvSmallPlan, PlacesDisplacedRequestAtLeastLoadedHome) {
  Input in = Three();
  in.new_of_old = {0, -1};
  in.joined_pages = {0, 16, 16};
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1, 0})) << "two are empty";
  in.requests.push_back({"d", 1, 3, 3, {7}});
  // "b" goes to 1; "d", which shares its block, to 2, the emptier one, and takes a copy.
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1, 0, 2}));
  in.joined_pages = {0, 16, 100};
  in.requests.push_back({"e", 1, 0, 4, {}});
  // One block of 100 pages is less than one of 16 and than three of 16.
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1, 0, 2, 2}));
}

TEST(KvSmallPlan, PlacesLongestFirstThenByName) {
  Input in = Three();
  in.new_of_old = {-1, -1};
  in.new_ranks = 2;
  in.new_groups[0].pop_back();
  in.joined_pages = {16, 16};
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1, 1})) << "the longest is given out first";
  in.requests.erase(in.requests.begin());
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 1}));
  std::swap(in.requests[0].id, in.requests[1].id);
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{1, 0}));
}

// Idle requests are placed after all others, in the order of the input, at home or not.
TEST(KvSmallPlan, PlacesIdleRequestsLast) {
  Input in = Three();
  in.new_of_old = {-1, -1};
  in.new_ranks = 2;
  in.new_groups[0].pop_back();
  in.joined_pages = {16, 16};
  in.requests[0].idle = true;  // the longest
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0, 0, 1}));
  EXPECT_EQ(Make(in).plan.requests_moved, 2u) << "it is not counted";
  // Rank 0 has six pages, and they may need eight. "b", at home on rank 1, has to go there.
  in = Three();
  in.new_of_old = {0, -1};
  in.new_ranks = 1;
  in.new_groups[0] = {{{0}, {0, 4}}};
  in.joined_pages = {0};
  in.ranks[0].total_pages = 6;
  in.ranks[0].free_pages = 2;
  EXPECT_EQ(MakePlan(in).status().message().find("KV of request b"), 0u);
  in.requests[0].idle = true;
  EXPECT_EQ(MakePlan(in).status().message().find("KV of request a"), 0u);
}

void GiveAnew(Input* in) {
  testing::Rng rng(1);
  for (RankState& rank : in->ranks) rank.strips.clear();
  testing::GivePages(rng, *in, 64, 1);
}

// Four requests of two blocks, all with home 0, in two layers that both ranks share.
Input AllAtOne() {
  Input in = testing::SmallWorld();
  const LayerGroups alone = in.old_groups[0], tensor = in.new_groups[0];
  in.old_groups = {tensor, tensor};
  in.new_groups = {alone, tensor};
  in.requests.clear();
  for (uint32_t i = 0; i < 4; ++i) {
    in.requests.push_back(
        {std::string(1, static_cast<char>('a' + i)), 0, 8, 8, {2 * i, 2 * i + 1}});
  }
  GiveAnew(&in);
  return in;
}

TEST(KvSmallPlan, BalancesRequestsLeavingTensorWithoutExtraBytes) {
  const Input in = AllAtOne();
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 1, 0, 1}));
  EXPECT_EQ(all.plan.lopsided, 1);
  EXPECT_EQ(all.plan.requests_moved, 2u);
  // One of two heads, in one layer, for every block.
  EXPECT_EQ(all.parts[0].moved_bytes + all.parts[1].moved_bytes, 4u * 8 * 64);
}

TEST(KvSmallPlan, DoesNotMoveRequestWhenItWouldFetchMore) {
  // In layer 0 each rank is alone already.
  Input in = AllAtOne();
  const LayerGroups alone = in.new_groups[0];
  in.old_groups[0] = in.new_groups[1] = alone;
  GiveAnew(&in);
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 0, 0, 0}));
  EXPECT_EQ(all.plan.lopsided, 2);
}

TEST(KvSmallPlan, DoesNotMoveRequestsWhenNearlyBalanced) {
  Input in = AllAtOne();
  in.requests[2].home = in.requests[3].home = 1;
  in.requests[0].length = in.requests[0].reserved = 4;
  in.requests[0].blocks = {0};  // three blocks and four
  GiveAnew(&in);
  const Whole all = Make(in);
  EXPECT_EQ(Homes(all), (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_NEAR(all.plan.lopsided, 4 / 3.5, 1e-9);
  EXPECT_EQ(all.plan.requests_moved, 0u);
}

// Layers of two kinds: a rank's need for a home is counted once, and just fits.
TEST(KvSmallPlan, CountsRoomOnceOverAllLayers) {
  Input in = testing::SmallWorld();
  in.old_groups.push_back(in.old_groups[0]);
  in.new_groups.push_back(in.old_groups[0]);  // layer 1 stays of each rank alone
  in.requests.resize(1);
  in.ranks[0] = {
      10,
      0,
      {{0, 7, 0, 0, 2, 0, 1}, {0, 7, 1, 0, 2, 2, 1}, {0, 9, 0, 0, 2, 4, 1}, {0, 9, 1, 0, 2, 6, 1}}};
  in.ranks[1] = {3, 2, {}};
  // Of three blocks, rank 0 needs head 0 of layer 0 and both of layer 1, rank 1 head 1 of layer 0.
  in.ranks[0].total_pages = 9;
  EXPECT_EQ(Homes(Make(in)), (std::vector<uint32_t>{0}));
  in.ranks[0].total_pages = 8;
  EXPECT_EQ(MakePlan(in).status().code(), Code::kNoMemory);
}

TEST(KvSmallPlan, RejectsPlanWithoutHomeInEveryLayer) {
  Input in = testing::SmallWorld();
  in.old_groups.push_back(in.old_groups[0]);
  in.new_groups = {{{{0}, {0, 4}}}, {{{1}, {0, 4}}}};
  in.ranks[0] = {
      16,
      4,
      {{0, 7, 0, 0, 2, 3, 9}, {0, 7, 1, 0, 2, 5, 6}, {0, 9, 0, 0, 2, 1, 9}, {0, 9, 1, 0, 2, 2, 6}}};
  in.ranks[1] = {16, 4, {{1, 7, 0, 0, 2, 0, 9}, {1, 7, 1, 0, 2, 8, 6}}};
  const Status status = MakePlan(in).status();
  EXPECT_EQ(status.code(), Code::kNoMemory);
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("no rank is in an attention group of every layer"));
}

TEST(KvSmallPlan, NamesHomeAndMissingPagesWhenRejected) {
  Input in = testing::SmallWorld();
  in.ranks[0].total_pages = 16;
  in.requests[0].reserved = 80;  // 20 blocks of one page on each rank
  const Status status = MakePlan(in).status();
  EXPECT_EQ(status.code(), Code::kNoMemory);
  EXPECT_THAT(
      status.message(),
      ::testing::HasSubstr("KV of request a (6 tokens, 80 reserved) fits on none of 2 homes"));
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("at home 1 rank 0 would have 22 of 16 KV pages reserved"));
}

}  // namespace
}  // namespace tangram::kv
