// The proof on one correct plan, and on the same plan with one error.
#include "agent/kv/cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/kv/testing/small_world.h"

namespace tangram::kv {
namespace {

using testing::CheckWhole;
using ::testing::HasSubstr;
using testing::OneLayer;
using testing::Whole;

struct Damage {
  const char* message;
  std::function<void(Input&, Whole&)> make;
};

void Refuses(const std::vector<Damage>& damages, const Input& good, const Whole& right) {
  const Status status = CheckWhole(good, right);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const Damage& damage : damages) {
    Input in = good;
    Whole plan = right;
    damage.make(in, plan);
    const Status wrong = CheckWhole(in, plan);
    EXPECT_EQ(wrong.code(), Code::kInternal) << damage.message;
    EXPECT_THAT(wrong.message(), HasSubstr(damage.message));
  }
}

TEST(KvCover, NamesEachDamage) {
  const std::vector<Damage> damages = {
      {"2 requests and 2 next blocks, not 3 and 2",
       [](Input&, Whole& w) { w.plan.requests.pop_back(); }},
      {"3 requests and 1 next blocks, not 3 and 2",
       [](Input&, Whole& w) { w.plan.next_block.pop_back(); }},
      {"rank 0: pages 9, 1 apart, of rank 0 are not 1 layers of old (home 0, block 7, layer 0, KV "
       "head 0)",
       [](Input&, Whole& w) { w.parts[0].kept[0].page = 9; }},
      {"rank 0: pages 1, 1 apart, of rank 0 are not 1 layers of old (home 0, block 7, layer 0, KV "
       "head 0)",
       [](Input&, Whole& w) { w.parts[0].kept[0].page = 1; }},
      {"rank 0 needs (home 0, block 9, layer 0, KV head 0) and does not get it there and then",
       [](Input&, Whole& w) { w.parts[0].kept[1].block = 7; }},
      {"rank 0: pages 9, 1 apart, of rank 0 are not 1 layers of old (home 0, block 9, layer 0, KV "
       "head 1)",
       [](Input&, Whole& w) { w.parts[0].freed[1].page = 9; }},
      {"rank 0 keeps or frees its old (home 0, block 7, layer 0, KV head 0) twice",
       [](Input&, Whole& w) {
         w.parts[0].freed.push_back({0, 7, 0, 0, 1, 3, 1});
       }},
      {"rank 0 keeps or frees its old (home 0, block 9, layer 0, KV head 1) twice",
       [](Input&, Whole& w) { w.parts[0].freed.push_back(w.parts[0].freed[1]); }},
      {"rank 0 leaks its old (home 0, block 9, layer 0, KV head 1)",
       [](Input&, Whole& w) { w.parts[0].freed.pop_back(); }},
      {"rank 1 leaks its old (home 1, block 7, layer 0, KV head 0)",
       [](Input&, Whole& w) { w.parts[1].freed.pop_back(); }},
      {"rank 1 pulls from rank 2", [](Input&, Whole& w) { w.parts[1].moves[0].source_rank = 2; }},
      {"rank 1: pages 9, 1 apart, of rank 0 are not 1 layers of old (home 0, block 7, layer 0, KV "
       "head 1)",
       [](Input&, Whole& w) { w.parts[1].moves[0].source_page = 9; }},
      {"rank 1: pages 2, 1 apart, of rank 0 are not 1 layers of old (home 0, block 7",
       [](Input&, Whole& w) {
         std::swap(w.parts[1].moves[0].source_page, w.parts[1].moves[1].source_page);
       }},
      {"rank 1: pages 5, 1 apart, of rank 0 are not 2 layers of old",
       [](Input&, Whole& w) { w.parts[1].moves[0].layers = 2; }},
      {"rank 1 gets 0 layers of (home 0, block 7, layer 0, KV head 1), 1 are needed",
       [](Input&, Whole& w) { w.parts[1].moves[0].layers = 0; }},
      {"rank 1 needs (home 0, block 9, layer 0, KV head 1) and does not get it",
       [](Input&, Whole& w) { w.parts[1].moves[1].block = 7; }},
      {"rank 1 needs (home 0, block 7, layer 0, KV head 1) and does not get it",
       [](Input&, Whole& w) { w.parts[1].moves[0].layer = 1; }},
      {"rank 1 needs (home 0, block 9, layer 0, KV head 1) and does not get it",
       [](Input&, Whole& w) { w.parts[1].moves.pop_back(); }},
      {"rank 1 needs (home 0, block 7, layer 0, KV head 1) and does not get it",
       [](Input&, Whole& w) { std::swap(w.parts[1].moves[0], w.parts[1].moves[1]); }},
      {"rank 1 pulls 2 pages and has 1 free",
       [](Input& in, Whole&) { in.ranks[1].free_pages = 1; }},
      {"request a is placed as x at home 0 with 2 blocks, not 2",
       [](Input&, Whole& w) { w.plan.requests[0].id = "x"; }},
      {"request a is placed as a at home 2 with 2 blocks",
       [](Input&, Whole& w) { w.plan.requests[0].home = 2; }},
      {"request a is placed as a at home 0 with 1 blocks, not 2",
       [](Input&, Whole& w) { w.plan.requests[0].blocks.pop_back(); }},
      {"home 0 gets block 7 of old home 0 twice",
       [](Input&, Whole& w) { w.plan.requests[2].blocks[0] = 8; }},
      {"block 7 of home 0 is block 7 of old home 0 and block 9 of old home 0",
       [](Input&, Whole& w) { w.plan.requests[0].blocks[1] = 7; }},
      {"block 9 of home 0 is not below next_block",
       [](Input&, Whole& w) { w.plan.next_block[0] = 9; }},
      {"rank 0 gets (home 1, block 11, layer 0, KV head 0), which no request needs",
       [](Input&, Whole& w) {
         w.parts[0].moves.push_back({1, 11, 0, 0, 1, 0, 3, 1, 4});
       }},
      {"rank 0 gets (home 1, block 11, layer 0, KV head 0), which no request needs",
       [](Input&, Whole& w) {
         w.parts[0].kept.push_back({1, 11, 0, 0, 1, 3, 1, 4});
       }},
      {"rank 0 gets 3 tokens of (home 0, block 7, layer 0, KV head 0), 4 are filled",
       [](Input&, Whole& w) { w.parts[0].kept[0].tokens = 3; }},
      {"rank 1 gets 3 tokens of (home 0, block 9, layer 0, KV head 1), 2 are filled",
       [](Input&, Whole& w) { w.parts[1].moves[1].tokens = 3; }},
      {"request a: home 0 has 1 of 2 KV heads in layer 0",
       [](Input& in, Whole&) {
         in.new_groups[0][0].query_head_bounds = {0, 2, 2};
       }},
      {"rank 0 may come to 4 pages and has 3",
       [](Input& in, Whole&) { in.ranks[0].total_pages = 3; }},
      {"rank 1 may come to 4 pages and has 3",
       [](Input& in, Whole&) { in.ranks[1].total_pages = 3; }},
  };
  Refuses(damages, testing::SmallWorld(), testing::SmallPlan());
}

// Each rank proves the homes of all and its own part: either check detects wrong homes.
TEST(KvCover, ProvesHomesWithAndWithoutPart) {
  Input in = testing::SmallWorld();
  Whole wrong = testing::SmallPlan();
  EXPECT_TRUE(CheckHomes(in, wrong.plan).ok());
  in.new_groups.push_back({{{0, 1}, {0, 2, 2}}});
  EXPECT_THAT(CheckHomes(in, wrong.plan).message(),
              HasSubstr("request a: home 0 has 1 of 2 KV heads in layer 1"));
  in.new_groups.pop_back();
  wrong.plan.next_block[0] = 9;
  EXPECT_THAT(CheckHomes(in, wrong.plan).message(), HasSubstr("is not below next_block"));
  EXPECT_THAT(CheckPart(in, wrong.plan, 0, wrong.parts[0]).message(),
              HasSubstr("is not below next_block"));
}

TEST(KvCover, AcceptsPlanAtLimits) {
  Input in = testing::SmallWorld();
  for (RankState& rank : in.ranks) rank.total_pages = 4;  // including the reservation of "a"
  in.ranks[0].free_pages = 1;
  in.ranks[1].free_pages = 2;
  EXPECT_EQ(CheckWhole(in, testing::SmallPlan()).message(), "");
}

// Rank 2 joins, and takes over only request "a"; ranks 0 and 1 have no more requests.
TEST(KvCover, RejectsKeptOrFreedPagesOfJoiner) {
  Input in = testing::SmallWorld();
  in.requests.resize(1);
  in.new_ranks = 3;
  in.new_groups = {{{{2}, {0, 4}}}};
  in.joined_pages = {0, 0, 6};  // three blocks of two heads
  Whole whole;
  whole.plan.requests = {{"a", 2, {0, 1}}};
  whole.plan.next_block = {0, 0, 2};
  whole.parts.resize(3);
  whole.parts[0].freed = in.ranks[0].strips;
  whole.parts[1].freed = in.ranks[1].strips;
  whole.parts[2].moves = {{2, 0, 0, 0, 1, 0, 3, 1, 4},
                          {2, 0, 1, 0, 1, 0, 5, 1, 4},
                          {2, 1, 0, 0, 1, 0, 1, 1, 2},
                          {2, 1, 1, 0, 1, 0, 2, 1, 2}};
  const std::vector<Damage> damages = {
      {"new rank 2 keeps page 3",
       [](Input&, Whole& w) {
         w.parts[2].kept = {{2, 0, 0, 0, 1, 3, 1, 4}};
       }},
      {"new rank 2 frees page 3",
       [](Input&, Whole& w) {
         w.parts[2].freed = OneLayer({{0, 7, 0, {3}}});
       }},
      {"rank 2 may come to 6 pages and has 5", [](Input& i, Whole&) { i.joined_pages[2] = 5; }},
      {"rank 2 may come to 6 pages and has 4", [](Input& i, Whole&) { i.joined_pages[2] = 4; }},
      {"rank 2 pulls 4 pages and has 3 free", [](Input& i, Whole&) { i.joined_pages[2] = 3; }},
      {"rank 2 pulls 4 pages and has 0 free", [](Input& i, Whole&) { i.joined_pages.clear(); }},
  };
  Refuses(damages, in, whole);
}

}  // namespace
}  // namespace tangram::kv
