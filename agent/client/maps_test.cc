#include "agent/client/maps.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "agent/layout/testing.h"

namespace tangram {
namespace {

// A few experts get a second holder: an alternative, which is not on the first one's rank.
void AddReplicas(v1::Layout* layout, std::mt19937_64& random) {
  for (v1::LayerLayout& layer : *layout->mutable_layers()) {
    for (int i = 0; i < 3 && layer.experts_size() > 1; ++i) {
      const auto groups = static_cast<uint64_t>(layer.experts_size());
      const auto from = static_cast<int>(random() % groups);
      const auto to = static_cast<int>((static_cast<uint64_t>(from) + 1) % groups);
      const auto& slots = layer.experts(from).slots();
      const uint32_t expert = slots.Get(static_cast<int>(random() % slots.size()));
      auto* there = layer.mutable_experts(to)->mutable_slots();
      if (std::find(there->begin(), there->end(), expert) == there->end()) there->Add(expert);
    }
  }
}

// Against the layout read plainly: each holder of an expert is an alternative in the order of the
// groups, and a piece has an address where, and only where, it is this rank's.
TEST(Maps, TellEveryHolderAndWhereMyPiecesLie) {
  auto geometry = layout::GeometryView::Make(layout::testing::SmallGeometry(3, 7, 6));
  ASSERT_TRUE(geometry.ok()) << geometry.status().message();
  std::mt19937_64 random(3);
  size_t mine = 0, replicas = 0, shards = 0;
  for (int round = 0; round < 300; ++round) {
    const auto ranks = static_cast<uint32_t>(1 + random() % 6);
    v1::Layout layout = layout::testing::RandomLayout(*geometry, ranks, 2, random);
    AddReplicas(&layout, random);
    ASSERT_TRUE(layout::Validate(layout, *geometry).ok());
    const auto rank = static_cast<uint32_t>(random() % ranks);
    const std::string& member = layout.members(static_cast<int>(rank)).id();
    auto maps = Maps::Build(std::make_shared<const v1::Layout>(layout), layout::HashOf(layout),
                            *geometry, member, {});
    ASSERT_TRUE(maps.ok()) << maps.status().message();
    std::vector<uint8_t> banks(layout.banks() * geometry->bank_pitch());
    (*maps)->Resolve(banks.data(), *geometry);

    std::map<layout::PieceKey, const uint8_t*> placed;
    for (const layout::PlacedPiece& piece : layout::PiecesOf(layout, *geometry, rank)) {
      placed[layout::KeyOf(piece)] =
          banks.data() + piece.bank * geometry->bank_pitch() + piece.offset;
    }
    size_t found = 0;
    for (const v1::LayerLayout& layer : layout.layers()) {
      const tg_layer_map& map = (*maps)->get()->layers[layer.layer()];
      for (uint32_t expert = 0; expert < geometry->experts(); ++expert) {
        const tg_expert& told = map.experts[expert];
        uint32_t alternative = 0;
        for (const v1::ExpertGroup& group : layer.experts()) {
          const auto& slots = group.slots();
          if (std::find(slots.begin(), slots.end(), expert + 1) == slots.end()) continue;
          ASSERT_LT(alternative, told.replicas);
          ASSERT_EQ(told.shards, layer.expert_group_size());
          for (uint32_t p = 0; p < told.shards; ++p) {
            const tg_piece& piece = told.pieces[alternative * told.shards + p];
            const auto run = layout::ShardOf(geometry->granules(), told.shards, expert, p);
            EXPECT_EQ(piece.rank, group.ranks(static_cast<int>(p)));
            EXPECT_EQ(piece.granule_start, run.start);
            EXPECT_EQ(piece.granule_count, run.count);
            const auto here = placed.find({layer.layer(), expert, run.start});
            EXPECT_EQ(piece.data, piece.rank == rank ? here->second : nullptr);
            found += piece.rank == rank ? 1 : 0;
            shards += told.shards > 1 ? 1 : 0;
          }
          ++alternative;
        }
        EXPECT_EQ(told.replicas, alternative);
        replicas += alternative > 1 ? 1 : 0;
      }
    }
    EXPECT_EQ(found, placed.size());
    mine += found;
  }
  EXPECT_GT(mine, 1000u);
  EXPECT_GT(replicas, 300u);
  EXPECT_GT(shards, 1000u);
}

TEST(Maps, AnInvalidLayoutIsNone) {
  auto geometry = layout::GeometryView::Make(layout::testing::SmallGeometry(2, 4, 6));
  std::mt19937_64 random(1);
  v1::Layout layout = layout::testing::RandomLayout(*geometry, 2, 0, random);
  layout.mutable_layers(1)->mutable_experts(0)->set_slots(0, 0);
  const auto maps = Maps::Build(std::make_shared<const v1::Layout>(layout), layout::HashOf(layout),
                                *geometry, layout.members(0).id(), {});
  EXPECT_EQ(maps.status().code(), Code::kBadPlan);
}

}  // namespace
}  // namespace tangram
