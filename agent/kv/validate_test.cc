// Each rule of a manifest, broken by itself in one that is right.
#include "agent/kv/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/kv/small_world.h"

namespace tangram::kv {
namespace {

using ::testing::HasSubstr;

struct Fault {
  const char* message;
  std::function<void(Input&)> make;
};

TEST(KvValidate, EachContradictionIsNamedWithItsNumbers) {
  const std::vector<Fault> faults = {
      {"shape: 0 query heads", [](Input& in) { in.shape.query_heads = 0; }},
      {"shape: 4 query heads, 0 KV heads", [](Input& in) { in.shape.kv_heads = 0; }},
      {"shape: 4 query heads, 3 KV heads", [](Input& in) { in.shape.kv_heads = 3; }},
      {"2 KV heads, 0 tokens a block", [](Input& in) { in.shape.block_tokens = 0; }},
      {"4 tokens a block, 0 bytes a token", [](Input& in) { in.shape.head_token_bytes = 0; }},
      {"4 tokens a block, 63 bytes a token", [](Input& in) { in.shape.head_token_bytes = 63; }},
      {"1 layers before and 0 after", [](Input& in) { in.new_groups.clear(); }},
      {"2 ranks with 3 new numbers", [](Input& in) { in.new_of_old.push_back(-1); }},
      {"1 layers before and 1 after",
       [](Input& in) {
         in.joined_pages = {0, 0, 0};
       }},
      {"new number -2 is given twice or outside 2 ranks", [](Input& in) { in.new_of_old[1] = -2; }},
      {"new number 2 is given twice or outside 2 ranks", [](Input& in) { in.new_of_old[1] = 2; }},
      {"new number 0 is given twice or outside 2 ranks", [](Input& in) { in.new_of_old[1] = 0; }},
      {"old layer 0: a group of 0 ranks has 1 bounds",
       [](Input& in) {
         in.old_groups[0].push_back({{}, {0}});
       }},
      {"old layer 0: a group of 0 ranks has 0 bounds",
       [](Input& in) { in.old_groups[0].push_back({}); }},
      {"new layer 0: a group of 2 ranks has 4 bounds that do not cut 4",
       [](Input& in) {
         in.new_groups[0][0].query_head_bounds = {0, 2, 4, 4};
       }},
      {"new layer 0: a group of 2 ranks has 3 bounds that do not cut 4",
       [](Input& in) {
         in.new_groups[0][0].query_head_bounds = {1, 2, 4};
       }},
      {"new layer 0: a group of 2 ranks has 3 bounds that do not cut 4",
       [](Input& in) {
         in.new_groups[0][0].query_head_bounds = {0, 2, 3};
       }},
      {"new layer 0: a group of 2 ranks has 3 bounds that do not cut 4",
       [](Input& in) {
         in.new_groups[0][0].query_head_bounds = {0, 5, 4};
       }},
      {"old layer 0: rank 2 of 2 is out of range or in two groups",
       [](Input& in) { in.old_groups[0][1].ranks[0] = 2; }},
      {"old layer 0: rank 0 of 2 is out of range or in two groups",
       [](Input& in) { in.old_groups[0][1].ranks[0] = 0; }},
      {"new layer 0: rank 2 of 2 is out of range",
       [](Input& in) { in.new_groups[0][0].ranks[1] = 2; }},
      {"rank 0 lists a block 4294967295",
       [](Input& in) { in.ranks[0].blocks[0].block = UINT32_MAX; }},
      {"rank 0 lists block 7 of home 2 twice, or there is no such home",
       [](Input& in) { in.ranks[0].blocks[0].home = 2; }},
      {"rank 0 lists block 9 of home 0 twice", [](Input& in) { in.ranks[0].blocks[0].block = 9; }},
      {"rank 0 has 1 pages of block 7 of home 0, its groups ask for 2",
       [](Input& in) { in.ranks[0].blocks[0].pages.pop_back(); }},
      {"rank 0: page 16 of 16 is out of range",
       [](Input& in) { in.ranks[0].blocks[0].pages[0] = 16; }},
      {"rank 0: page 1 of 16 is out of range or used twice",
       [](Input& in) { in.ranks[0].blocks[0].pages[0] = 1; }},
      {"rank 0: 4 pages in blocks and 13 free are more than its 16",
       [](Input& in) { in.ranks[0].free_pages = 13; }},
      {"rank 1: 2 pages in blocks and 15 free", [](Input& in) { in.ranks[1].free_pages = 15; }},
      {"request a comes twice", [](Input& in) { in.requests[1].id = "a"; }},
      {"request b: home 2 of 2 ranks, length 4, reserved 4, 1 blocks",
       [](Input& in) { in.requests[1].home = 2; }},
      {"request b: home 1 of 2 ranks, length 4, reserved 3, 1 blocks",
       [](Input& in) { in.requests[1].reserved = 3; }},
      {"request a: home 0 of 2 ranks, length 6, reserved 12, 1 blocks",
       [](Input& in) { in.requests[0].blocks.pop_back(); }},
      {"request a lists a block twice", [](Input& in) { in.requests[0].blocks[1] = 7; }},
      {"request b: home 1 is in no attention group of layer 0",
       [](Input& in) {
         in.old_groups[0].pop_back();
         in.ranks[1].blocks.clear();
       }},
      {"request b: rank 1 has no pages of block 7 of home 1",
       [](Input& in) { in.ranks[1].blocks.clear(); }},
      {"request a: rank 0 has no pages of block 9 of home 0",
       [](Input& in) { in.ranks[0].blocks.pop_back(); }},
  };
  const Input good = testing::SmallWorld();
  ASSERT_TRUE(Validate(good).ok()) << Validate(good).message();
  for (const Fault& fault : faults) {
    Input bad = good;
    fault.make(bad);
    EXPECT_EQ(Validate(bad).code(), Code::kInvalid) << fault.message;
    EXPECT_THAT(Validate(bad).message(), HasSubstr(fault.message));
    EXPECT_EQ(MakePlan(bad).status().message(), Validate(bad).message());
  }
}

TEST(KvValidate, WhatIsAtALimitIsTaken) {
  const std::vector<std::function<void(Input&)>> changes = {
      [](Input& in) {
        in.joined_pages = {0, 0};
      },
      [](Input& in) {
        in.new_of_old = {1, -1};
      },
      [](Input& in) { in.ranks[0].blocks[0].pages[0] = 15; },
      [](Input& in) { in.requests[0].blocks.push_back(12); },  // nothing accepted is in it
      // who has nothing yet needs no group
      [](Input& in) {
        in.old_groups[0].pop_back();
        in.ranks[1].blocks.clear();
        in.requests[1] = {"b", 1, 0, 4, {}};
      },
      // a rank without a query head
      [](Input& in) {
        in.new_groups[0][0].query_head_bounds = {0, 4, 4};
      },
      [](Input& in) {
        in.old_groups[0] = {{{0, 1}, {0, 4, 4}}};
        in.ranks[1].blocks.clear();
        in.requests.erase(in.requests.begin() + 1);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Input in = testing::SmallWorld();
    changes[i](in);
    EXPECT_EQ(Validate(in).message(), "") << i;
  }
}

TEST(KvValidate, BlocksOfTokens) {
  const std::vector<std::pair<uint32_t, uint32_t>> blocks = {
      {0, 0}, {1, 1}, {4, 1}, {5, 2}, {8, 2}, {UINT32_MAX, 1U << 30}};
  for (const auto& [tokens, want] : blocks) EXPECT_EQ(BlocksOf(tokens, 4), want) << tokens;
}

}  // namespace
}  // namespace tangram::kv
