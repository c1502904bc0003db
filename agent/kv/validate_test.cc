// Each rule of a manifest, violated alone in a correct one.
#include "agent/kv/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "agent/kv/testing/small_world.h"

namespace tangram::kv {
namespace {

using ::testing::HasSubstr;
using testing::OneLayer;

Status Check(const Input& in) {
  std::vector<Span> spans;
  return Validate(in, &spans);
}

struct Fault {
  const char* message;
  std::function<void(Input&)> make;
};

TEST(KvValidate, NamesEachContradictionWithNumbers) {
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
      {"new layer 1: a group of 2 ranks has 3 bounds that do not cut 4",
       [](Input& in) {
         in.old_groups.push_back(in.old_groups[0]);
         in.new_groups.push_back({{{0, 1}, {0, 2, 3}}});
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
       [](Input& in) { in.ranks[0].strips[2].block = UINT32_MAX; }},
      {"rank 0 lists block 7 of home 2 twice or out of order, or there is no such home",
       [](Input& in) { in.ranks[0].strips[0].home = 2; }},
      {"rank 0 lists block 7 of home 0 twice or out of order",
       [](Input& in) {
         in.ranks[0].strips = OneLayer({{0, 9, 0, {1, 2}}, {0, 7, 0, {3, 5}}});
       }},
      {"rank 0 lists KV head 0 of layer 0 of block 7 of home 0 twice or out of order",
       [](Input& in) { in.ranks[0].strips[1].kv_head = 0; }},
      {"rank 0 lists KV head 2 of layer 0 of block 7 of home 0, which its groups do not give it",
       [](Input& in) { in.ranks[0].strips[1].kv_head = 2; }},
      {"rank 0 lists KV head 0 of layer 0 of block 7 of home 1, which its groups do not give it",
       [](Input& in) {
         in.ranks[0].strips = OneLayer({{1, 7, 0, {3, 5}}});
       }},
      {"rank 0 has 1 pages of block 7 of home 0, its groups ask for 2",
       [](Input& in) { in.ranks[0].strips.erase(in.ranks[0].strips.begin() + 1); }},
      {"rank 0 has 1 pages of block 9 of home 0, its groups ask for 2",
       [](Input& in) { in.ranks[0].strips.pop_back(); }},
      {"rank 0, block 7 of home 0: a strip of 0 layers from 0 of 1, 1 pages apart",
       [](Input& in) { in.ranks[0].strips[0].layers = 0; }},
      {"rank 0, block 7 of home 0: a strip of 2 layers from 0 of 1",
       [](Input& in) { in.ranks[0].strips[0].layers = 2; }},
      {"rank 0, block 7 of home 0: a strip of 4294967295 layers from 2 of 1",
       [](Input& in) {
         in.ranks[0].strips[0].layer = 2, in.ranks[0].strips[0].layers = UINT32_MAX;
       }},
      {"rank 0: page 16 of 16 is out of range", [](Input& in) { in.ranks[0].strips[0].page = 16; }},
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
      {"request a lists a block twice",
       [](Input& in) {
         in.requests[0].blocks = {7, 9, 7};
       }},
      {"request a lists a block 4294967295",
       [](Input& in) { in.requests[0].blocks.push_back(UINT32_MAX); }},
      {"request b: home 1 is in no attention group of layer 0",
       [](Input& in) {
         in.old_groups[0].pop_back();
         in.ranks[1].strips.clear();
       }},
  };
  const Input good = testing::SmallWorld();
  ASSERT_EQ(Check(good).message(), "");
  for (const Fault& fault : faults) {
    Input bad = good;
    fault.make(bad);
    EXPECT_EQ(Check(bad).code(), Code::kInvalid) << fault.message;
    EXPECT_THAT(Check(bad).message(), HasSubstr(fault.message));
    EXPECT_EQ(MakePlan(bad).status().message(), Check(bad).message());
  }
}

TEST(KvValidate, AcceptsValuesAtLimits) {
  const std::vector<std::function<void(Input&)>> changes = {
      [](Input& in) {
        in.joined_pages = {0, 0};
      },
      [](Input& in) {
        in.new_of_old = {1, -1};
      },
      [](Input& in) { in.ranks[0].strips[0].page = 15; },
      [](Input& in) { in.requests[0].blocks.push_back(12); },  // it has no accepted content
      // a rank without blocks needs no group
      [](Input& in) {
        in.old_groups[0].pop_back();
        in.ranks[1].strips.clear();
        in.requests[1] = {"b", 1, 0, 4, {}};
      },
      // a rank without a query head
      [](Input& in) {
        in.new_groups[0][0].query_head_bounds = {0, 4, 4};
      },
      [](Input& in) {
        in.old_groups[0] = {{{0, 1}, {0, 4, 4}}};
        in.ranks[1].strips.clear();
        in.requests.erase(in.requests.begin() + 1);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Input in = testing::SmallWorld();
    changes[i](in);
    EXPECT_EQ(Check(in).message(), "") << i;
  }
}

// Four layers of two heads. Each head's pages are 0, 2, 4, 6 and 1, 3, 5, 7, except for the change.
TEST(KvValidate, RejectsPageUsedTwice) {
  Input in;
  in.shape = {2, 2, 4, 64};
  in.old_groups = in.new_groups = std::vector<LayerGroups>(4, LayerGroups{{{0}, {0, 2}}});
  in.new_of_old = {0};
  in.new_ranks = 1;
  in.requests = {{"a", 0, 4, 4, {3}}};
  in.ranks = {{8, 0, {{0, 3, 0, 0, 4, 0, 2}, {0, 3, 1, 0, 4, 1, 2}}}};
  EXPECT_EQ(Check(in).message(), "");
  EXPECT_EQ(ValidatePages(in, 0).message(), "");
  const auto refused = [&](const Strip& second, const char* what) {
    Input bad = in;
    bad.ranks[0].total_pages = 300;
    bad.ranks[0].strips[1] = second;
    EXPECT_EQ(Check(bad).message(), "");
    EXPECT_THAT(ValidatePages(bad, 0).message(), HasSubstr(what));
    const Result<Plan> plan = MakePlan(bad);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(MakePart(bad, *plan, 0).status().message(), ValidatePages(bad, 0).message());
  };
  refused({0, 3, 1, 0, 4, 0, 2}, "a page of 0 to 0, in block 3 of home 0, is used twice");
  refused({0, 3, 1, 0, 4, 3, 1}, "a page of 3 to 6, in block 3 of home 0, is used twice");
  refused({0, 3, 1, 0, 4, 6, 64}, "a page of 6 to 6, in block 3 of home 0, is used twice");
}

// A run of pages, of any length from any page: each of its pages is marked, and no other.
TEST(KvValidate, DetectsReusedPageInRunsAcrossWords) {
  for (uint32_t first = 60; first < 70; ++first) {
    for (uint32_t layers : {1U, 4U, 5U, 63U, 64U, 65U, 130U}) {
      for (uint32_t other = 58; other < first + layers + 2; ++other) {
        Input in;
        in.ranks = {{400, 0, {{0, 0, 0, 0, layers, first, 1}, {0, 0, 1, 0, 1, other, 1}}}};
        const bool twice = other >= first && other < first + layers;
        ASSERT_EQ(ValidatePages(in, 0).ok(), !twice) << first << "+" << layers << " " << other;
      }
    }
  }
}

TEST(KvValidate, BlocksOfTokens) {
  const std::vector<std::pair<uint32_t, uint32_t>> blocks = {
      {0, 0}, {1, 1}, {4, 1}, {5, 2}, {8, 2}, {UINT32_MAX, 1U << 30}};
  for (const auto& [tokens, want] : blocks) EXPECT_EQ(BlocksOf(tokens, 4), want) << tokens;
}

}  // namespace
}  // namespace tangram::kv
