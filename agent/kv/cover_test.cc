// The proof on one plan that is right, and on the same plan with one thing wrong.
#include "agent/kv/cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/kv/small_world.h"

namespace tangram::kv {
namespace {

using ::testing::HasSubstr;

struct Damage {
  const char* message;
  std::function<void(Input&, Plan&)> make;
};

void Refuses(const std::vector<Damage>& damages, const Input& good, const Plan& right) {
  const Status status = CoverCheck(good, right);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const Damage& damage : damages) {
    Input in = good;
    Plan plan = right;
    damage.make(in, plan);
    const Status wrong = CoverCheck(in, plan);
    EXPECT_EQ(wrong.code(), Code::kInternal) << damage.message;
    EXPECT_THAT(wrong.message(), HasSubstr(damage.message));
  }
}

TEST(KvCover, EachWrongThingIsNamed) {
  const std::vector<Damage> damages = {
      {"1 ranks, 3 requests and 2 next blocks, not 2, 3 and 2",
       [](Input&, Plan& p) { p.ranks.pop_back(); }},
      {"2 ranks, 2 requests and 2 next blocks", [](Input&, Plan& p) { p.requests.pop_back(); }},
      {"2 ranks, 3 requests and 1 next blocks", [](Input&, Plan& p) { p.next_block.pop_back(); }},
      {"rank 0 keeps page 3 twice",
       [](Input&, Plan& p) {
         p.ranks[0].kept.push_back({3, 0, 0, 0, 11, 4});
       }},
      {"page 9 of rank 0 holds nothing", [](Input&, Plan& p) { p.ranks[0].kept[0].page = 9; }},
      {"rank 0 gets (home 0, block 7, layer 0, KV head 0) twice",
       [](Input&, Plan& p) { p.ranks[0].kept[1].block = 7; }},
      {"rank 0 frees page 9, which is free or kept",
       [](Input&, Plan& p) { p.ranks[0].freed.push_back(9); }},
      {"rank 0 frees page 3, which is free or kept",
       [](Input&, Plan& p) { p.ranks[0].freed.push_back(3); }},
      {"rank 0 frees page 2, which is free or kept",
       [](Input&, Plan& p) { p.ranks[0].freed.push_back(2); }},
      {"rank 0 leaks 1 pages", [](Input&, Plan& p) { p.ranks[0].freed.pop_back(); }},
      {"rank 1 leaks 1 pages", [](Input&, Plan& p) { p.ranks[1].freed.pop_back(); }},
      {"rank 1 pulls from rank 2", [](Input&, Plan& p) { p.ranks[1].moves[0].source_rank = 2; }},
      {"page 9 of rank 0 holds nothing",
       [](Input&, Plan& p) { p.ranks[1].moves[0].source_page = 9; }},
      {"rank 1 gets (home 0, block 7, layer 0, KV head 1) twice",
       [](Input&, Plan& p) { p.ranks[1].moves[1].block = 7; }},
      {"rank 1 pulls 2 pages and has 1 free", [](Input& in, Plan&) { in.ranks[1].free_pages = 1; }},
      {"request a is placed as x at home 0 with 2 blocks, not 2",
       [](Input&, Plan& p) { p.requests[0].id = "x"; }},
      {"request a is placed as a at home 2 with 2 blocks",
       [](Input&, Plan& p) { p.requests[0].home = 2; }},
      {"request a is placed as a at home 0 with 1 blocks, not 2",
       [](Input&, Plan& p) { p.requests[0].blocks.pop_back(); }},
      {"home 0 gets block 7 of old home 0 twice",
       [](Input&, Plan& p) { p.requests[2].blocks[0] = 8; }},
      {"block 9 of home 0 is not below next_block", [](Input&, Plan& p) { p.next_block[0] = 9; }},
      {"request a needs (home 0, block 9, layer 0, KV head 1) on rank 1; there is nothing",
       [](Input&, Plan& p) { p.ranks[1].moves.pop_back(); }},
      {"request a needs (home 0, block 7, layer 0, KV head 1) on rank 1; there is old (home 0, "
       "block 9, layer 0, KV head 1)",
       [](Input&, Plan& p) {
         std::swap(p.ranks[1].moves[0].source_page, p.ranks[1].moves[1].source_page);
       }},
      {"rank 0 gets (home 0, block 11, layer 0, KV head 0), which no request needs",
       [](Input&, Plan& p) {
         p.ranks[0].moves.push_back({0, 3, 0, 0, 0, 11, 4});
       }},
      {"rank 0 gets 3 tokens of (home 0, block 7, layer 0, KV head 0), 4 are filled",
       [](Input&, Plan& p) { p.ranks[0].kept[0].tokens = 3; }},
      {"rank 1 gets 3 tokens of (home 0, block 9, layer 0, KV head 1), 2 are filled",
       [](Input&, Plan& p) { p.ranks[1].moves[1].tokens = 3; }},
      {"request a: home 0 has 1 of 2 KV heads in layer 0",
       [](Input& in, Plan& p) {
         in.new_groups[0][0].query_head_bounds = {0, 2, 2};
         p.ranks[1] = {{}, {}, {0, 8}};
       }},
      {"rank 0 may come to 4 pages and has 3",
       [](Input& in, Plan&) { in.ranks[0].total_pages = 3; }},
      {"rank 1 may come to 4 pages and has 3",
       [](Input& in, Plan&) { in.ranks[1].total_pages = 3; }},
  };
  Refuses(damages, testing::SmallWorld(), testing::SmallPlan());
}

TEST(KvCover, WhatIsAtALimitIsRight) {
  Input in = testing::SmallWorld();
  for (RankState& rank : in.ranks) rank.total_pages = 4;  // what is reserved for "a" included
  in.ranks[0].free_pages = 1;
  in.ranks[1].free_pages = 2;
  EXPECT_EQ(CoverCheck(in, testing::SmallPlan()).message(), "");
}

// Rank 2 joins, and takes over request "a" alone; ranks 0 and 1 have no more requests.
TEST(KvCover, AJoinerHasPagesOfItsOwnAndNothingElse) {
  Input in = testing::SmallWorld();
  in.requests.resize(1);
  in.new_ranks = 3;
  in.new_groups = {{{{2}, {0, 4}}}};
  in.joined_pages = {0, 0, 6};  // three blocks of two heads
  Plan plan;
  plan.requests = {{"a", 2, {0, 1}}};
  plan.next_block = {0, 0, 2};
  plan.ranks.resize(3);
  plan.ranks[0].freed = {1, 2, 3, 5};
  plan.ranks[1].freed = {0, 8};
  plan.ranks[2].moves = {
      {0, 3, 0, 0, 2, 0, 4}, {0, 5, 0, 1, 2, 0, 4}, {0, 1, 0, 0, 2, 1, 2}, {0, 2, 0, 1, 2, 1, 2}};
  const std::vector<Damage> damages = {
      {"new rank 2 keeps page 3",
       [](Input&, Plan& p) {
         p.ranks[2].kept = {{3, 0, 0, 2, 0, 4}};
       }},
      {"rank 2 frees page 3", [](Input&, Plan& p) { p.ranks[2].freed = {3}; }},
      {"rank 2 may come to 6 pages and has 5", [](Input& i, Plan&) { i.joined_pages[2] = 5; }},
      {"rank 2 may come to 6 pages and has 4", [](Input& i, Plan&) { i.joined_pages[2] = 4; }},
      {"rank 2 pulls 4 pages and has 3 free", [](Input& i, Plan&) { i.joined_pages[2] = 3; }},
      {"rank 2 pulls 4 pages and has 0 free", [](Input& i, Plan&) { i.joined_pages.clear(); }},
  };
  Refuses(damages, in, plan);
}

}  // namespace
}  // namespace tangram::kv
