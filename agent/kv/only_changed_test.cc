// Plans from manifests that list only changed layers, compared with plans from whole ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "agent/kv/cover.h"
#include "agent/kv/testing.h"

namespace tangram::kv {
namespace {

using testing::CheckWhole;
using testing::Cut;
using testing::MakeWhole;
using testing::Pick;
using testing::RandomInput;
using testing::Rng;
using testing::Shuffled;
using testing::Whole;

// Ranks stay, and so do the groups of about half of the layers.
Input SameRanks(Rng& rng) {
  Input in = RandomInput(rng, 4000, 1);
  const auto ranks = static_cast<uint32_t>(in.ranks.size());
  in.new_ranks = ranks;
  in.joined_pages.clear();
  std::iota(in.new_of_old.begin(), in.new_of_old.end(), 0);
  for (size_t layer = 0; layer < in.old_groups.size(); ++layer) {
    in.new_groups[layer] =
        rng() % 2 == 0 ? in.old_groups[layer]
                       : Cut(Shuffled(rng, ranks), Pick(rng, 1, ranks), in.shape.query_heads);
  }
  return in;
}

Input OnlyChanged(Input in) {
  in.only_changed = true;
  const std::vector<bool> changes = LayersThatChange(in.old_groups, in.new_groups);
  for (RankState& state : in.ranks) {
    std::vector<Strip> listed;
    for (const Strip& strip : state.strips) {
      for (uint32_t i = 0; i < strip.layers; ++i) {
        if (!changes[strip.layer + i]) continue;
        Strip one = strip;
        one.layer += i;
        one.page += i * strip.stride;
        one.layers = 1;
        listed.push_back(one);
      }
    }
    state.strips = std::move(listed);
  }
  return in;
}

bool AnyMoves(const Input& in, const Plan& plan) {
  for (size_t i = 0; i < in.requests.size(); ++i) {
    if (in.requests[i].length > 0 && plan.requests[i].home != in.requests[i].home) return true;
  }
  return false;
}

// The source of each page of these layers, by name.
using Pages = std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>,
                       std::tuple<uint32_t, uint32_t, uint32_t>>;
Pages PagesOf(const RankPlan& part, uint32_t rank, const std::vector<bool>& layers) {
  Pages out;
  for (const Keep& k : part.kept) {
    for (uint32_t i = 0; i < k.layers; ++i) {
      if (!layers[k.layer + i]) continue;
      out[{k.home, k.block, k.kv_head, k.layer + i}] = {rank, k.page + i * k.stride, k.tokens};
    }
  }
  for (const Move& m : part.moves) {
    for (uint32_t i = 0; i < m.layers; ++i) {
      if (!layers[m.layer + i]) continue;
      out[{m.home, m.block, m.kv_head, m.layer + i}] = {
          m.source_rank, m.source_page + i * m.source_stride, m.tokens};
    }
  }
  return out;
}

TEST(KvOnlyChanged, MatchesWholeManifestPlanWhenAllRequestsStay) {
  uint32_t same = 0, moved = 0;
  for (uint32_t seed = 0; seed < 800; ++seed) {
    Rng rng(seed);
    Input in = SameRanks(rng);
    if (seed % 3 == 0) {
      for (RankState& state : in.ranks) state.free_pages = Pick(rng, 0, 60);
    }
    const Input listed = OnlyChanged(in);
    const Result<Whole> whole = MakeWhole(in), part = MakeWhole(listed);
    if (!part.ok()) {
      ASSERT_TRUE(!whole.ok() || AnyMoves(in, whole->plan))
          << seed << ": " << part.status().message();
      const Code code = part.status().code();
      ASSERT_TRUE(code == Code::kNotHeld || code == Code::kNoMemory) << part.status().message();
      ++moved;
      continue;
    }
    ++same;
    ASSERT_TRUE(whole.ok()) << seed << ": " << whole.status().message();
    const Status cover = CheckWhole(listed, *part);
    ASSERT_TRUE(cover.ok()) << seed << ": " << cover.message();
    const std::vector<bool> changes = LayersThatChange(in.old_groups, in.new_groups);
    for (uint32_t rank = 0; rank < in.new_ranks; ++rank) {
      ASSERT_EQ(PagesOf(part->parts[rank], rank, changes),
                PagesOf(whole->parts[rank], rank, changes))
          << seed << ", rank " << rank;
    }
  }
  EXPECT_GT(same, 100u);
  EXPECT_GT(moved, 50u);
}

TEST(KvOnlyChanged, RejectsContradictingManifest) {
  Rng rng(1);
  Input in = SameRanks(rng);
  while (in.ranks.size() < 2 || LayersThatChange(in.old_groups, in.new_groups)[0]) {
    in = SameRanks(rng);
  }
  Input listed = OnlyChanged(in);
  listed.ranks[0].strips.insert(listed.ranks[0].strips.begin(), Strip{0, 0, 0, 0, 1, 0, 1});
  EXPECT_EQ(MakePlan(listed).status().code(), Code::kInvalid) << "a layer that stays";
  listed = OnlyChanged(in);
  std::swap(listed.new_of_old[0], listed.new_of_old[1]);
  EXPECT_EQ(MakePlan(listed).status().code(), Code::kInvalid) << "ranks change";
}

// A plan from the whole manifest that moves a request is invalid for one that lists too little.
TEST(KvOnlyChanged, FailsProofWhenRequestMoves) {
  uint32_t refused = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const Input in = SameRanks(rng);
    const Result<Plan> plan = MakePlan(in);
    if (!plan.ok() || !AnyMoves(in, *plan)) continue;
    ASSERT_FALSE(CheckHomes(OnlyChanged(in), *plan).ok()) << seed;
    ++refused;
  }
  EXPECT_GT(refused, 20u);
}

}  // namespace
}  // namespace tangram::kv
