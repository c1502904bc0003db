#include "agent/layout/owners.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

// The same, found in every rank's list of pieces.
bool SomeoneHas(const v1::Layout& layout, const GeometryView& geometry, uint32_t layer,
                uint32_t expert, Run run, const std::vector<bool>& ranks) {
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) continue;
    for (const PlacedPiece& piece : PiecesOf(layout, geometry, rank)) {
      if (piece.layer != layer || piece.expert != expert) continue;
      if (run.count == 0) return true;
      if (piece.run.start <= run.start &&
          run.start + run.count <= piece.run.start + piece.run.count)
        return true;
    }
  }
  return false;
}

TEST(Owners, AgreesWithPiecesOf) {
  std::mt19937_64 random(8);
  const GeometryView geometry = GeometryView::Make(testing::SmallGeometry(3, 8, 6)).value();
  for (int round = 0; round < 60; ++round) {
    const auto ranks = static_cast<uint32_t>(1 + random() % 5);
    v1::Layout layout = testing::RandomLayout(geometry, ranks, 2, random);
    // Replicas, and slots without an expert.
    for (v1::LayerLayout& layer : *layout.mutable_layers()) {
      v1::ExpertGroup& group = *layer.mutable_experts(0);
      const auto extra = static_cast<uint32_t>(random() % 9);
      const auto& slots = group.slots();
      if (std::find(slots.begin(), slots.end(), extra) == slots.end()) group.add_slots(extra);
    }
    ASSERT_TRUE(Validate(layout, geometry).ok());
    const Owners owners(layout, geometry);
    for (int ask = 0; ask < 200; ++ask) {
      const auto layer = static_cast<uint32_t>(random() % 3);
      const auto expert = static_cast<uint32_t>(random() % 8);
      const layout::Run run{static_cast<uint32_t>(random() % 6),
                            static_cast<uint32_t>(random() % 7)};
      std::vector<bool> some(ranks);
      for (uint32_t r = 0; r < ranks; ++r) some[r] = random() % 2 == 0;
      ASSERT_EQ(owners.Give(layer, expert, run, some),
                SomeoneHas(layout, geometry, layer, expert, run, some));
      const std::vector<uint32_t> holders = owners.Holders(layer, expert, run);
      for (uint32_t r = 0; r < ranks; ++r) {
        std::vector<bool> one(ranks);
        one[r] = true;
        ASSERT_EQ(std::find(holders.begin(), holders.end(), r) != holders.end(),
                  SomeoneHas(layout, geometry, layer, expert, run, one));
      }
    }
  }
}

// Callers may pass any values.
TEST(Owners, FindsNoOwnerOfInvalidPiece) {
  std::mt19937_64 random(9);
  const GeometryView geometry = GeometryView::Make(testing::SmallGeometry(2, 4, 3)).value();
  const v1::Layout layout = testing::RandomLayout(geometry, 2, 0, random);
  const Owners owners(layout, geometry);
  const std::vector<bool> all(2, true);
  EXPECT_FALSE(owners.Give(2, 0, {0, 1}, all));
  EXPECT_FALSE(owners.Give(~0U, 0, {0, 1}, all));
  EXPECT_FALSE(owners.Give(0, 4, {0, 1}, all));
  EXPECT_FALSE(owners.Give(0, 4, {0, 0}, all));
  EXPECT_TRUE(owners.Give(0, 3, {~0U, 0}, all)) << "somebody has its tail";
  EXPECT_FALSE(owners.Give(0, 0, {~0U, 2}, all));
  EXPECT_FALSE(owners.Give(0, 0, {0, ~0U}, all));
}

}  // namespace
}  // namespace tangram::layout
