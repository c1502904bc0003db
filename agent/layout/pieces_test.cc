// Places of pieces, and the pages that they touch.
#include <gtest/gtest.h>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

// Two experts of 6 granules (768 bytes each, 4608 together) and pages of 4096.
GeometryView Small() { return GeometryView::Make(testing::SmallGeometry(2, 2, 6)).value(); }

v1::Layout OneGroup(uint32_t layer, int32_t bank_offset, std::vector<uint32_t> ranks,
                    std::vector<uint32_t> slots) {
  v1::Layout out;
  v1::LayerLayout* only = out.add_layers();
  only->set_layer(layer);
  only->set_bank_offset(bank_offset);
  v1::ExpertGroup* group = only->add_experts();
  group->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  group->mutable_slots()->Assign(slots.begin(), slots.end());
  return out;
}

TEST(Pieces, PlacesWholeExpertsAtTheirSlots) {
  const std::vector<PlacedPiece> want = {{1, 3, 1, 1, {0, 6}, 4608, 4608},
                                         {1, 3, 3, 0, {0, 6}, 3 * 4608, 4608}};
  const v1::Layout layout = OneGroup(1, 2, {4}, {0, 2, 0, 1});
  EXPECT_EQ(PiecesOf(layout, Small(), 4), want);
  EXPECT_TRUE(PiecesOf(layout, Small(), 3).empty());
}

TEST(Pieces, PacksShardsFromSamePageOnEveryRank) {
  // Four ranks: two have 2 granules of an expert and two 1, and expert 1 begins one rank later.
  const v1::Layout layout = OneGroup(0, 0, {5, 6, 7, 8}, {2, 0, 1});
  const auto pieces = [&](uint32_t rank) { return PiecesOf(layout, Small(), rank); };
  using Pieces = std::vector<PlacedPiece>;
  EXPECT_EQ(pieces(5), (Pieces{{0, 0, 0, 1, {0, 1}, 0, 768}, {0, 0, 2, 0, {0, 2}, 768, 1536}}));
  EXPECT_EQ(pieces(6),
            (Pieces{{0, 0, 0, 1, {1, 2}, 4096, 1536}, {0, 0, 2, 0, {2, 2}, 5632, 1536}}));
  EXPECT_EQ(pieces(7), (Pieces{{0, 0, 0, 1, {3, 2}, 8192, 1536}, {0, 0, 2, 0, {4, 1}, 9728, 768}}));
  EXPECT_EQ(pieces(8),
            (Pieces{{0, 0, 0, 1, {5, 1}, 12288, 768}, {0, 0, 2, 0, {5, 1}, 13056, 768}}));
}

TEST(Pieces, PlacesPositionAfterShardsOfEarlierPositions) {
  v1::Geometry g = testing::SmallGeometry(2, 4, 6);
  g.set_page_bytes(256);
  const GeometryView geometry = GeometryView::Make(g).value();
  for (uint32_t expert = 0; expert < 4; ++expert) {
    const v1::Layout layout = OneGroup(0, 0, {0, 1, 2, 3}, {expert + 1});
    uint64_t next = 0;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const auto pieces = PiecesOf(layout, geometry, rank);
      ASSERT_EQ(pieces.size(), 1u);
      EXPECT_EQ(pieces[0].offset, next) << "expert " << expert << ", rank " << rank;
      next += pieces[0].bytes;  // whole pages in this case
    }
  }
}

PlacedPiece At(uint32_t bank, uint64_t offset, uint64_t bytes) {
  PlacedPiece piece;
  piece.bank = bank;
  piece.offset = offset;
  piece.bytes = bytes;
  return piece;
}

TEST(Pieces, CountsPageOncePerBank) {
  const GeometryView geometry = Small();
  EXPECT_EQ(PagesTouched({}, geometry), 0u);
  EXPECT_EQ(PagesTouched({At(0, 0, 4096)}, geometry), 1u);
  EXPECT_EQ(PagesTouched({At(0, 0, 4097)}, geometry), 2u);
  EXPECT_EQ(PagesTouched({At(0, 4095, 2)}, geometry), 2u);
  EXPECT_EQ(PagesTouched({At(0, 0, 100), At(0, 200, 100)}, geometry), 1u);
  EXPECT_EQ(PagesTouched({At(0, 0, 100), At(1, 0, 100)}, geometry), 2u);
  EXPECT_EQ(PagesTouched({At(0, 0, 40960), At(0, 8192, 100)}, geometry), 10u) << "one in another";
  EXPECT_EQ(PagesTouched({At(0, 0, 8192), At(0, 4096, 8192)}, geometry), 3u) << "half beside it";
}

TEST(Pieces, CountsSamePagesAsReference) {
  const GeometryView geometry = Small();
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<PlacedPiece> pieces;
    for (uint64_t n = random() % 12; n > 0; --n) {
      pieces.push_back(At(static_cast<uint32_t>(random() % 3), 256 * (random() % 300),
                          256 * (1 + random() % 60)));
    }
    EXPECT_EQ(PagesTouched(pieces, geometry), testing::PagesOf(pieces, geometry).size());
  }
}

TEST(Pieces, SelectsKvHeadsReadByQueryHeads) {
  const GeometryView geometry = Small();  // three query heads read one KV head
  v1::AttentionGroup group;
  for (const uint32_t bound : {0, 4, 6, 12}) group.add_query_head_bounds(bound);
  EXPECT_EQ(KvHeadsOf(group, 0, geometry), (layout::Run{0, 2}));
  EXPECT_EQ(KvHeadsOf(group, 1, geometry), (layout::Run{1, 1}));
  EXPECT_EQ(KvHeadsOf(group, 2, geometry), (layout::Run{2, 2}));
}

TEST(Pieces, FindsMembersAndDenseHolders) {
  v1::Layout layout;
  for (const char* id : {"a", "b"}) layout.add_members()->set_id(id);
  layout.mutable_dense()->add_ranks(1);
  EXPECT_EQ(RankOf(layout, "a"), 0);
  EXPECT_EQ(RankOf(layout, "b"), 1);
  EXPECT_EQ(RankOf(layout, "c"), -1);
  EXPECT_FALSE(HoldsDense(layout, 0));
  EXPECT_TRUE(HoldsDense(layout, 1));
}

}  // namespace
}  // namespace tangram::layout
