#include "agent/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

GeometryView Geometry(uint32_t layers, uint32_t experts, uint32_t granules) {
  auto view = GeometryView::Make(testing::SmallGeometry(layers, experts, granules));
  EXPECT_TRUE(view.ok()) << view.status().message();
  return std::move(view).value();
}

TEST(ShardOf, CoversEveryGranuleOnceInNearlyEqualShards) {
  for (uint32_t granules = 1; granules <= 24; ++granules) {
    for (uint32_t group = 1; group <= granules; ++group) {
      for (uint32_t expert = 0; expert < 30; ++expert) {
        uint32_t next = 0;
        for (uint32_t p = 0; p < group; ++p) {
          const layout::Run run = ShardOf(granules, group, expert, p);
          ASSERT_EQ(run.start, next);
          ASSERT_GE(run.count, granules / group);
          ASSERT_LE(run.count, granules / group + 1);
          next += run.count;
        }
        ASSERT_EQ(next, granules);
      }
    }
  }
}

TEST(ShardOf, RotatesLongerRunsAcrossRanks) {
  // 10 granules on 4 ranks: over any 4 consecutive experts every position gets 10.
  for (uint32_t p = 0; p < 4; ++p) {
    uint32_t sum = 0;
    for (uint32_t e = 0; e < 4; ++e) sum += ShardOf(10, 4, e, p).count;
    EXPECT_EQ(sum, 10);
  }
}

TEST(ShardOf, SplitsSevenGranulesOnThreeRanks) {
  const std::vector<std::vector<layout::Run>> want = {
      {{0, 3}, {3, 2}, {5, 2}}, {{0, 2}, {2, 3}, {5, 2}}, {{0, 2}, {2, 2}, {4, 3}}};
  for (uint32_t expert = 0; expert < 9; ++expert) {
    for (uint32_t p = 0; p < 3; ++p) EXPECT_EQ(ShardOf(7, 3, expert, p), want[expert % 3][p]);
  }
}

TEST(Geometry, RejectsInconsistentFields) {
  auto g = testing::SmallGeometry(2, 4, 6);
  g.set_granule_rows(7);
  EXPECT_THAT(GeometryView::Make(g).status().message(),
              HasSubstr("granule_rows = 7 does not divide moe_inner = 48"));
  g = testing::SmallGeometry(2, 4, 6);
  g.set_moe_layers(1, 9);
  EXPECT_EQ(GeometryView::Make(g).status().code(), Code::kBadGeometry);
  g = testing::SmallGeometry(2, 4, 6);
  g.set_kv_heads(5);
  EXPECT_THAT(GeometryView::Make(g).status().message(),
              HasSubstr("12 query heads are not a multiple of 5 KV heads"));
}

// Every field at its minimum and maximum: accepted geometries give the same results in 128 bits.
TEST(Geometry, RejectsByteCountOverflow) {
  using Wide = unsigned __int128;
  constexpr Wide kLimit = Wide{1} << 63;
  const auto round_up = [](Wide value, Wide unit) { return (value + unit - 1) / unit * unit; };
  uint32_t taken = 0, refused = 0;
  for (uint32_t bits = 0; bits < 128; ++bits) {
    const auto pick = [&](uint32_t bit, uint64_t low, uint64_t high) {
      return (bits >> bit & 1) == 0 ? low : high;
    };
    for (const uint64_t page :
         {uint64_t{256}, uint64_t{4096}, uint64_t{1} << 40, uint64_t{1} << 63}) {
      auto g = testing::SmallGeometry(static_cast<uint32_t>(pick(0, 2, 4096)), 4, 6);
      g.set_experts(static_cast<uint32_t>(pick(1, 1, 65536)));
      g.set_moe_inner(static_cast<uint32_t>(pick(2, 1, 1 << 20)));
      g.set_granule_rows(static_cast<uint32_t>(pick(3, 1, g.moe_inner())));
      g.set_granule_bytes(pick(4, 1, uint64_t{1} << 40));
      g.set_expert_tail_bytes(pick(5, 0, uint64_t{1} << 40));
      g.set_dense_bytes(pick(6, 0, UINT64_MAX));
      g.set_page_bytes(page);
      const auto made = GeometryView::Make(g);
      if (!made.ok()) {
        ++refused;
        EXPECT_EQ(made.status().code(), Code::kBadGeometry);
        continue;
      }
      ++taken;
      const Wide expert = Wide{made->granules()} * g.granule_bytes() + g.expert_tail_bytes();
      EXPECT_TRUE(expert == made->expert_bytes());
      const Wide paged = round_up(expert, page);
      const Wide pitch = (paged - expert) * 100 <= expert * 3 ? paged : round_up(expert, 256);
      EXPECT_TRUE(pitch == made->expert_pitch());
      const Wide bank = round_up((Wide{g.experts()} + kSpareSlots) * pitch, page);
      EXPECT_TRUE(bank == made->bank_pitch()) << made->bank_pitch();
      EXPECT_TRUE(bank / page <= kMostPagesOfABank);
      const Wide banks = (Wide{made->moe_layers()} + kMostSpareBanks) * bank;
      EXPECT_TRUE(banks + round_up(g.dense_bytes(), page) < kLimit);
    }
  }
  EXPECT_GT(taken, 50u);
  EXPECT_GT(refused, 50u);
}

TEST(Geometry, ReportsOverflowWithFieldAndValue) {
  auto g = testing::SmallGeometry(2, 65536, 1);
  g.set_granule_bytes(uint64_t{1} << 40);
  g.set_moe_inner(1 << 20);
  g.set_granule_rows(1);
  const std::string message = GeometryView::Make(g).status().message();
  EXPECT_THAT(message, HasSubstr("bank_pitch"));
  EXPECT_THAT(message, HasSubstr("65568 * 1152921504606846976"));
}

TEST(Geometry, RoundsPitchToPagesOnlyWhenWasteIsSmall) {
  auto g = testing::SmallGeometry(1, 4, 6);
  g.set_granule_bytes(682);  // 4092 of 4096
  EXPECT_EQ(GeometryView::Make(g)->expert_pitch(), 4096U);
  g.set_granule_bytes(600);  // 3600 of 4096: 14 % would be lost
  EXPECT_EQ(GeometryView::Make(g)->expert_pitch(), 3840U);
}

TEST(Validate, AcceptsRandomLayoutsAndNamesEachFault) {
  const GeometryView geometry = Geometry(3, 7, 6);
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint32_t ranks = 1 + random() % 6;
    const v1::Layout layout = testing::RandomLayout(geometry, ranks, 2, random);
    ASSERT_TRUE(Validate(layout, geometry).ok()) << Validate(layout, geometry).message();

    v1::Layout lost = layout;
    lost.mutable_layers(1)->mutable_experts(0)->set_slots(0, 0);
    EXPECT_THAT(Validate(lost, geometry).message(), HasSubstr("has no owner"));
    if (v1::Layout twice = layout; twice.layers(1).experts(0).slots_size() > 1) {
      v1::ExpertGroup* group = twice.mutable_layers(1)->mutable_experts(0);
      group->set_slots(1, group->slots(0));
      EXPECT_THAT(
          Validate(twice, geometry).message(),
          HasSubstr("expert group 0: expert " + std::to_string(group->slots(0) - 1) + " twice"));
    }
    v1::Layout bank = layout;
    bank.mutable_layers(1)->set_bank_offset(bank.layers(1).bank_offset() + 1);
    EXPECT_THAT(Validate(bank, geometry).message(), HasSubstr("share bank"));
    v1::Layout heads = layout;
    heads.mutable_layers(0)->mutable_attention(0)->set_query_head_bounds(1, 11);
    EXPECT_THAT(Validate(heads, geometry).message(), HasSubstr("query_head_bounds"));
  }
}

TEST(Validate, RejectsUnevenShardsWhenEngineRequiresEvenOnes) {
  auto g = testing::SmallGeometry(1, 4, 10);
  g.set_even_shards_only(true);
  const GeometryView geometry = std::move(GeometryView::Make(g)).value();
  std::mt19937_64 random(1);
  v1::Layout layout = testing::RandomLayout(geometry, 1, 1, random);
  layout.add_members()->set_id("b");
  layout.add_members()->set_id("c");
  v1::LayerLayout* layer = layout.mutable_layers(0);
  layer->set_expert_group_size(3);
  layer->mutable_experts(0)->add_ranks(1);
  layer->mutable_experts(0)->add_ranks(2);
  EXPECT_THAT(Validate(layout, geometry).message(),
              HasSubstr("10 granules do not divide by 3 ranks"));
}

TEST(Parse, RoundTripsAndRejectsTruncatedBytes) {
  const GeometryView geometry = Geometry(3, 7, 6);
  std::mt19937_64 random(8);
  for (int round = 0; round < 50; ++round) {
    const v1::Layout layout = testing::RandomLayout(geometry, 1 + random() % 6, 2, random);
    const std::string wire = WireOf(layout);
    EXPECT_EQ(Sha256(wire), HashOf(layout));
    const auto parsed = Parse(wire);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(WireOf(**parsed), wire);
    EXPECT_NE((*parsed)->GetArena(), nullptr) << "one block of memory, not one for each message";

    const auto cut = Parse(std::string_view(wire).substr(0, wire.size() - 1));
    EXPECT_EQ(cut.status().code(), Code::kBadPlan);
    EXPECT_THAT(cut.status().message(), HasSubstr("bytes are not a layout"));
  }
}

TEST(Apply, RenumbersRanksOnLeaveAndRejectsLeavingOwner) {
  const GeometryView geometry = Geometry(1, 4, 6);
  std::mt19937_64 random(3);
  v1::Layout layout = testing::RandomLayout(geometry, 2, 1, random);
  // A third member in front that owns nothing: ranks 0, 1 become 1, 2.
  v1::Layout three = layout;
  three.clear_members();
  for (const char* id : {"idle", "a", "b"}) three.add_members()->set_id(id);
  three.mutable_dense()->clear_ranks();
  for (const uint32_t r : {0, 1, 2}) three.mutable_dense()->add_ranks(r);
  for (auto& group : *three.mutable_layers(0)->mutable_experts()) {
    for (uint32_t& rank : *group.mutable_ranks()) ++rank;
  }
  for (auto& group : *three.mutable_layers(0)->mutable_attention()) {
    for (uint32_t& rank : *group.mutable_ranks()) ++rank;
  }
  v1::LayoutDelta delta;
  for (const uint32_t r : {0, 1, 2}) delta.add_renumber(r);
  delta.set_members_changed(true);
  delta.add_members()->set_id("a");
  delta.add_members()->set_id("b");
  *delta.mutable_dense() = layout.dense();
  const auto left = Apply(three, delta, 2);
  ASSERT_TRUE(left.ok()) << left.status().message();
  EXPECT_EQ(left->layers(0).SerializeAsString(), layout.layers(0).SerializeAsString());
  EXPECT_EQ(left->epoch(), 2U);

  delta.set_renumber(0, 1);
  delta.set_renumber(1, 0);
  if (three.layers(0).expert_group_size() == 1 || three.layers(0).experts(0).ranks_size() > 0) {
    EXPECT_THAT(Apply(three, delta, 2).status().message(), HasSubstr("leaving rank still"));
  }
}

TEST(PiecesOf, NeverOverlapsAndCoversEveryGranule) {
  const GeometryView geometry = Geometry(3, 9, 7);
  std::mt19937_64 random(11);
  for (int round = 0; round < 100; ++round) {
    const uint32_t ranks = 1 + random() % 7;
    const v1::Layout layout = testing::RandomLayout(geometry, ranks, 2, random);
    uint64_t granules = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
      const auto pieces = PiecesOf(layout, geometry, r);
      for (size_t i = 0; i < pieces.size(); ++i) {
        granules += pieces[i].run.count;
        if (i > 0 && pieces[i].bank == pieces[i - 1].bank) {
          ASSERT_GE(pieces[i].offset, pieces[i - 1].offset + pieces[i - 1].bytes);
        }
      }
    }
    EXPECT_EQ(granules, 3U * 9 * 7);
  }
}

}  // namespace
}  // namespace tangram::layout
