#include "agent/kv/plan.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "agent/kv/cover.h"
#include "agent/kv/testing.h"
#include "agent/kv/testing/page_check.h"
#include "agent/kv/validate.h"

namespace tangram::kv {
namespace {

using testing::CheckWhole;
using testing::Cut;
using testing::GivePages;
using testing::MakeWhole;
using testing::PageCheck;
using testing::Pick;
using testing::RandomInput;
using testing::Rng;
using testing::Whole;

// The orders that plan.h guarantees.
void ExpectOrder(const Whole& whole) {
  const auto by_name = [](const auto& a, const auto& b) {
    return std::tie(a.home, a.block, a.kv_head, a.layer) <
           std::tie(b.home, b.block, b.kv_head, b.layer);
  };
  for (const RankPlan& r : whole.parts) {
    EXPECT_TRUE(std::is_sorted(r.moves.begin(), r.moves.end(), by_name));
    EXPECT_TRUE(std::is_sorted(r.kept.begin(), r.kept.end(), by_name));
    EXPECT_TRUE(std::is_sorted(r.freed.begin(), r.freed.end()));
  }
}

TEST(KvPlan, RandomWorldsAreCovered) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    const Input in = RandomInput(rng, 4000, 1);
    const Result<Whole> plan = MakeWhole(in);
    ASSERT_TRUE(plan.ok()) << seed << ": " << plan.status().message();
    const Status cover = CheckWhole(in, *plan);
    ASSERT_TRUE(cover.ok()) << seed << ": " << cover.message();
    ASSERT_TRUE(PageCheck(in, *plan).Right()) << seed;
    ExpectOrder(*plan);
  }
}

TEST(KvPlan, CoversOrRejectsWorldsWithTightMemory) {
  uint32_t fits = 0, refused = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    Input in = RandomInput(rng, 4000, 1);
    // The pages in use and few more.
    for (RankState& r : in.ranks) {
      r.free_pages = Pick(rng, 0, 60);
    }
    for (uint32_t& pages : in.joined_pages) pages = std::min(pages, Pick(rng, 0, 100));
    const Result<Whole> plan = MakeWhole(in);
    if (plan.ok()) {
      ++fits;
      const Status cover = CheckWhole(in, *plan);
      ASSERT_TRUE(cover.ok()) << seed << ": " << cover.message();
      ASSERT_TRUE(PageCheck(in, *plan).Right()) << seed;
    } else {
      ++refused;
      ASSERT_EQ(plan.status().code(), Code::kNoMemory) << plan.status().message();
      ASSERT_THAT(plan.status().message(), ::testing::ContainsRegex("fits on none of"));
    }
  }
  EXPECT_GT(fits, 50u);
  EXPECT_GT(refused, 50u);
}

// Damages a plan, or returns false if it has no part to damage.
using Damage = std::function<bool(Rng&, Whole&)>;

template <typename T>
T* Any(Rng& rng, Whole& whole, std::vector<T> RankPlan::*member) {
  std::vector<T*> all;
  for (RankPlan& r : whole.parts) {
    for (T& item : r.*member) all.push_back(&item);
  }
  return all.empty() ? nullptr : all[rng() % all.size()];
}

template <typename T>
bool Drop(Rng& rng, Whole& whole, std::vector<T> RankPlan::*member) {
  T* item = Any(rng, whole, member);
  if (item == nullptr) return false;
  for (RankPlan& r : whole.parts) {
    auto& list = r.*member;
    if (!list.empty() && item >= list.data() && item < list.data() + list.size()) {
      list.erase(list.begin() + (item - list.data()));
      break;
    }
  }
  return true;
}

// Changes one move, kept strip or freed strip.
template <typename T>
Damage Change(std::vector<T> RankPlan::*member, std::function<void(Rng&, T&)> change) {
  return [member, change = std::move(change)](Rng& rng, Whole& whole) {
    T* item = Any(rng, whole, member);
    if (item != nullptr) change(rng, *item);
    return item != nullptr;
  };
}

const std::map<std::string, Damage>& Damages() {
  static const std::map<std::string, Damage> damages = {
      {"move dropped", [](Rng& rng, Whole& w) { return Drop(rng, w, &RankPlan::moves); }},
      {"kept strip dropped", [](Rng& rng, Whole& w) { return Drop(rng, w, &RankPlan::kept); }},
      {"freed strip dropped", [](Rng& rng, Whole& w) { return Drop(rng, w, &RankPlan::freed); }},
      {"another page pulled",
       Change<Move>(&RankPlan::moves, [](Rng&, Move& m) { ++m.source_page; })},
      {"pulled from another",
       Change<Move>(&RankPlan::moves, [](Rng& rng, Move& m) { m.source_rank += 1 + rng() % 3; })},
      {"another page kept", Change<Keep>(&RankPlan::kept, [](Rng&, Keep& k) { ++k.page; })},
      {"another page freed", Change<Strip>(&RankPlan::freed, [](Rng&, Strip& s) { ++s.page; })},
      {"another head", Change<Move>(&RankPlan::moves, [](Rng&, Move& m) { ++m.kv_head; })},
      {"another layer", Change<Keep>(&RankPlan::kept, [](Rng&, Keep& k) { ++k.layer; })},
      {"a layer too few", Change<Move>(&RankPlan::moves, [](Rng&, Move& m) { --m.layers; })},
      {"a layer too many kept", Change<Keep>(&RankPlan::kept, [](Rng&, Keep& k) { ++k.layers; })},
      {"a layer too few freed",
       Change<Strip>(&RankPlan::freed, [](Rng&, Strip& s) { --s.layers; })},
      {"one token too few", Change<Move>(&RankPlan::moves, [](Rng&, Move& m) { --m.tokens; })},
      {"one token too many", Change<Keep>(&RankPlan::kept, [](Rng&, Keep& k) { ++k.tokens; })},
      {"pulled twice",
       [](Rng& rng, Whole& w) {
         for (RankPlan& r : w.parts) {
           if (r.moves.empty()) continue;
           const size_t i = rng() % r.moves.size();
           r.moves.insert(r.moves.begin() + static_cast<int64_t>(i), r.moves[i]);
           return true;
         }
         return false;
       }},
      {"kept and freed",
       [](Rng&, Whole& w) {
         for (RankPlan& r : w.parts) {
           if (r.kept.empty()) continue;
           const Keep& k = r.kept[0];
           r.freed.push_back({k.home, k.block, k.kv_head, k.layer, k.layers, k.page, k.stride});
           return true;
         }
         return false;
       }},
      {"another home",
       [](Rng& rng, Whole& w) {
         for (Placement& r : w.plan.requests) {
           if (r.blocks.empty() || w.parts.size() < 2) continue;
           r.home = (r.home + 1 + rng() % (w.parts.size() - 1)) % w.parts.size();
           return true;
         }
         return false;
       }},
      {"blocks swapped",
       [](Rng&, Whole& w) {
         for (Placement& r : w.plan.requests) {
           if (r.blocks.size() < 2) continue;
           std::swap(r.blocks[0], r.blocks[1]);
           return true;
         }
         return false;
       }},
      {"one name for two blocks",
       [](Rng&, Whole& w) {
         for (Placement& r : w.plan.requests) {
           if (r.blocks.size() < 2) continue;
           r.blocks[0] = r.blocks[1];
           return true;
         }
         return false;
       }},
  };
  return damages;
}

// The page-by-page check and the real one detect each damage.
TEST(KvPlan, EveryDamageFailsTheCoverCheck) {
  std::map<std::string, int> tried;
  for (uint32_t seed = 0; seed < 80; ++seed) {
    for (const auto& [name, damage] : Damages()) {
      Rng rng(seed);
      const Input in = RandomInput(rng, 4000, 1);
      Result<Whole> plan = MakeWhole(in);
      ASSERT_TRUE(plan.ok());
      if (!damage(rng, *plan)) continue;
      ++tried[name];
      EXPECT_FALSE(PageCheck(in, *plan).Right()) << name << ", seed " << seed;
      EXPECT_FALSE(CheckWhole(in, *plan).ok()) << name << ", seed " << seed;
    }
  }
  for (const auto& [name, damage] : Damages()) EXPECT_GT(tried[name], 10) << name;
}

// A plan that the real check accepts is correct page by page, after any number of damages.
TEST(KvPlan, CoverCheckAcceptsOnlyCorrectPlans) {
  std::vector<const Damage*> damages;
  for (const auto& [name, damage] : Damages()) damages.push_back(&damage);
  for (uint32_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    const Input in = RandomInput(rng, 4000, 1);
    Result<Whole> plan = MakeWhole(in);
    ASSERT_TRUE(plan.ok());
    for (uint32_t n = Pick(rng, 1, 4); n > 0; --n) {
      (void)(*damages[rng() % damages.size()])(rng, *plan);
    }
    if (CheckWhole(in, *plan).ok()) EXPECT_TRUE(PageCheck(in, *plan).Right()) << seed;
  }
}

// Two ranks, one layer, one block of 4 tokens: small enough to verify by hand.
Input TwoRanks(uint32_t old_t, uint32_t new_t) {
  Input in;
  in.shape = {4, 2, 4, 64};
  in.old_groups = {Cut({0, 1}, old_t, 4)};
  in.new_groups = {Cut({0, 1}, new_t, 4)};
  in.new_of_old = {0, 1};
  in.new_ranks = 2;
  in.ranks.resize(2);
  return in;
}

TEST(KvPlan, SameShardingMovesNothing) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    Input in = RandomInput(rng, 4000, 1);
    in.new_groups = in.old_groups;
    in.new_ranks = static_cast<uint32_t>(in.ranks.size());
    in.joined_pages.clear();
    std::iota(in.new_of_old.begin(), in.new_of_old.end(), 0);
    in.new_of_old.resize(in.ranks.size());
    const Result<Whole> plan = MakeWhole(in);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const RankPlan& part : plan->parts) EXPECT_EQ(part.moved_bytes, 0u);
    EXPECT_EQ(plan->plan.requests_moved, 0u);
    for (size_t i = 0; i < in.requests.size(); ++i) {
      EXPECT_EQ(plan->plan.requests[i].home, in.requests[i].home);
    }
  }
}

TEST(KvPlan, DataToTensorMovesEachHeadOnceAndOnlyFilledTokens) {
  Input in = TwoRanks(1, 2);
  in.requests = {{"a", 0, 6, 8, {7, 9}}};
  Rng rng(1);
  GivePages(rng, in, 32, 1);
  const Result<Whole> plan = MakeWhole(in);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(CheckWhole(in, *plan).ok());
  EXPECT_EQ(plan->parts[0].kept.size(), 2u);  // KV head 0 of two blocks stays
  EXPECT_TRUE(plan->parts[0].moves.empty());
  ASSERT_EQ(plan->parts[1].moves.size(), 2u);  // KV head 1
  EXPECT_EQ(plan->parts[1].moves[0].tokens, 4u);
  EXPECT_EQ(plan->parts[1].moves[1].tokens, 2u);
  EXPECT_EQ(plan->parts[1].moved_bytes, 6u * 64);
  EXPECT_EQ(plan->parts[0].moved_bytes, 0u);
  EXPECT_EQ(plan->parts[0].freed.size(), 2u);
}

TEST(KvPlan, SharedPrefixIsCopiedOncePerNewOwner) {
  Input in = TwoRanks(1, 1);
  in.requests = {{"a", 0, 9, 9, {1, 2, 3}}, {"b", 0, 10, 10, {1, 2, 4}}, {"c", 0, 8, 8, {1, 2}}};
  Rng rng(1);
  GivePages(rng, in, 64, 1);
  in.new_of_old = {-1, 0};  // rank 0 leaves; rank 1 is the new rank 0
  in.new_ranks = 1;
  in.new_groups = {Cut({0}, 1, 4)};
  const Result<Whole> plan = MakeWhole(in);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(CheckWhole(in, *plan).ok());
  EXPECT_EQ(plan->parts[0].moves.size(), 4u * 2);  // blocks 1, 2, 3, 4, two KV heads
  EXPECT_EQ(plan->plan.requests[0].blocks[0], plan->plan.requests[1].blocks[0]);
  EXPECT_EQ(plan->plan.requests[0].blocks[1], plan->plan.requests[2].blocks[1]);
  EXPECT_NE(plan->plan.requests[0].blocks[2], plan->plan.requests[1].blocks[2]);
}

TEST(KvPlan, SplitsFetchesAcrossReplicas) {
  Input in;
  in.shape = {4, 1, 4, 64};  // one KV head: every rank of a group holds it
  in.old_groups = {Cut({0, 1}, 2, 4)};
  in.new_groups = {Cut({2, 3}, 1, 4)};
  in.new_of_old = {0, 1};
  in.new_ranks = 4;
  in.joined_pages = {0, 0, 32, 32};
  in.ranks.resize(2);
  in.requests = {{"a", 0, 16, 16, {1, 2, 3, 4}}};
  Rng rng(1);
  GivePages(rng, in, 32, 1);
  const Result<Whole> plan = MakeWhole(in);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(CheckWhole(in, *plan).ok());
  std::map<uint32_t, int> by_source;
  for (const RankPlan& r : plan->parts) {
    for (const Move& m : r.moves) ++by_source[m.source_rank];
  }
  EXPECT_EQ(by_source[0], 2);
  EXPECT_EQ(by_source[1], 2);
}

TEST(KvPlan, PlacesDisplacedRequestsLongestFirstOnLeastLoaded) {
  Input in;
  in.shape = {2, 1, 4, 64};
  in.old_groups = {Cut({0, 1, 2}, 1, 2)};
  in.new_groups = {Cut({0, 1}, 1, 2)};
  in.new_of_old = {0, 1, -1};
  in.new_ranks = 2;
  in.ranks.resize(3);
  in.requests = {{"stay", 0, 8, 8, {1, 2}},
                 {"short", 2, 4, 4, {1}},
                 {"long", 2, 16, 16, {2, 3, 4, 5}},
                 {"waiting", 2, 0, 4, {}}};
  Rng rng(1);
  GivePages(rng, in, 32, 1);
  const Result<Whole> plan = MakeWhole(in);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(CheckWhole(in, *plan).ok());
  EXPECT_EQ(plan->plan.requests[0].home, 0u);
  EXPECT_EQ(plan->plan.requests[2].home, 1u);  // long: placed first, at the empty rank
  EXPECT_EQ(plan->plan.requests[1].home, 0u);  // short: 8 tokens there, 16 on rank 1
  EXPECT_TRUE(plan->plan.requests[3].blocks.empty());
}

TEST(KvPlan, RejectsContradictingManifest) {
  Rng rng(3);
  Input good = TwoRanks(1, 2);
  good.requests = {{"a", 0, 6, 8, {7, 9}}, {"b", 1, 3, 8, {7}}};
  GivePages(rng, good, 32, 1);
  ASSERT_TRUE(MakePlan(good).ok());
  const std::map<std::string, std::function<void(Input&)>> breaks = {
      {"used twice", [](Input& in) { in.ranks[0].strips[0].page = in.ranks[0].strips[1].page; }},
      {"page 32 of 32", [](Input& in) { in.ranks[0].strips[0].page = 32; }},
      {"has no page of KV head 0 of layer 0 of block 9 of home 0, which rank 0 needs",
       [](Input& in) { in.ranks[0].strips.resize(2); }},
      {"comes twice", [](Input& in) { in.requests[1].id = "a"; }},
      {"more than its", [](Input& in) { in.ranks[1].free_pages = 32; }},
      {"do not cut",
       [](Input& in) {
         in.new_groups[0][0].query_head_bounds = {0, 3, 2};
       }},
      {"out of range or in two groups",
       [](Input& in) { in.new_groups[0].push_back(in.new_groups[0][0]); }},
      {"new number",
       [](Input& in) {
         in.new_of_old = {0, 0};
       }},
      {"1 layers before and 0 after", [](Input& in) { in.new_groups.clear(); }},
      {"2 ranks with 1 new numbers", [](Input& in) { in.new_of_old.pop_back(); }},
      {"1 layers before and 1 after", [](Input& in) { in.joined_pages = {0}; }},
      {"lists a block twice",
       [](Input& in) {
         in.requests[0].blocks = {7, 7};
       }},
  };
  for (const auto& [message, damage] : breaks) {
    Input bad = good;
    damage(bad);
    const Result<Whole> plan = MakeWhole(bad);
    ASSERT_FALSE(plan.ok()) << message;
    EXPECT_EQ(plan.status().code(), Code::kInvalid);
    EXPECT_THAT(plan.status().message(), ::testing::HasSubstr(message));
  }
}

TEST(KvPlan, FitsUpToLastPageOnly) {
  Input in = TwoRanks(1, 1);
  in.requests = {{"a", 0, 8, 16, {1, 2}}};
  Rng rng(1);
  GivePages(rng, in, 8, 1);
  in.new_of_old = {-1, 0};  // all move to rank 1: two blocks of two heads arrive, two may follow
  in.new_ranks = 1;
  in.new_groups = {Cut({0}, 1, 4)};
  in.ranks[1].free_pages = 4;
  const Result<Whole> plan = MakeWhole(in);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(CheckWhole(in, *plan).ok());
  Input arriving = in;
  --arriving.ranks[1].free_pages;
  EXPECT_EQ(MakePlan(arriving).status().code(), Code::kNoMemory);
  EXPECT_FALSE(CheckWhole(arriving, *plan).ok());
  Input reserved = in;
  --reserved.ranks[1].total_pages;
  EXPECT_EQ(MakePlan(reserved).status().code(), Code::kNoMemory);
  EXPECT_FALSE(CheckWhole(reserved, *plan).ok());
}

// A 32-bit sum would wrap, and the request would appear to need no room.
TEST(KvPlan, DoesNotWrapAtIntegerLimits) {
  Rng rng(3);
  Input good = TwoRanks(1, 2);
  good.requests = {{"a", 0, 6, 8, {7, 9}}};
  GivePages(rng, good, 32, 1);
  ASSERT_TRUE(MakePlan(good).ok());
  Input longer = good;
  longer.requests[0].length = longer.requests[0].reserved = UINT32_MAX;
  EXPECT_EQ(MakePlan(longer).status().code(), Code::kInvalid) << "it has two blocks";
  Input greedy = good;
  greedy.requests.push_back({"b", 0, 0, UINT32_MAX, {}});
  EXPECT_EQ(MakePlan(greedy).status().code(), Code::kNoMemory) << "it reserves 2^30 blocks";
  for (const uint32_t last : {UINT32_MAX - 1, UINT32_MAX}) {
    Input numbered = good;
    numbered.requests[0].blocks[1] = last;
    for (RankState& rank : numbered.ranks) {
      for (Strip& held : rank.strips) held.block = held.block == 9 ? last : held.block;
    }
    const Result<Whole> plan = MakeWhole(numbered);
    if (last == UINT32_MAX) {
      EXPECT_EQ(plan.status().code(), Code::kInvalid) << "no block could follow it";
    } else {
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ(plan->plan.next_block[0], UINT32_MAX);
    }
  }
}

}  // namespace
}  // namespace tangram::kv
