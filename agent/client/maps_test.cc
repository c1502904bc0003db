#include "agent/client/maps.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "agent/layout/testing.h"

namespace tangram {
namespace {

// A few experts get a second holder: a replica on another rank.
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

// Compared with a plain reading of the layout. Each holder of an expert is a replica in the order
// of the groups, and exactly this rank's pieces have an address.
TEST(Maps, ListEveryReplicaAndAddressesOfOwnPieces) {
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

// The content of a layout's maps, with addresses.
std::vector<uint64_t> ContentOf(const tg_maps& maps, uint32_t layers, uint32_t experts) {
  std::vector<uint64_t> out{maps.epoch, static_cast<uint64_t>(maps.rank), maps.world_size};
  for (uint32_t l = 0; l < layers; ++l) {
    const tg_layer_map& map = maps.layers[l];
    out.insert(out.end(),
               {map.layer, static_cast<uint64_t>(map.moe_ordinal), map.attention_groups});
    for (uint32_t e = 0; map.experts != nullptr && e < experts; ++e) {
      const tg_expert& expert = map.experts[e];
      for (uint32_t i = 0; i < expert.replicas * expert.shards; ++i) {
        const tg_piece& piece = expert.pieces[i];
        out.insert(out.end(), {piece.rank, piece.granule_start, piece.granule_count,
                               reinterpret_cast<uint64_t>(piece.data)});
      }
    }
    for (uint32_t g = 0; g < map.attention_groups; ++g) {
      const tg_attention_group& group = map.attention[g];
      out.insert(out.end(), group.ranks, group.ranks + group.size);
      out.insert(out.end(), group.query_head_bounds, group.query_head_bounds + group.size + 1);
    }
  }
  return out;
}

// A chain of layouts, each of which changes some layers of the previous one. Maps that share layers
// equal maps built alone, also after the previous maps are destroyed.
TEST(Maps, ShareUnchangedLayers) {
  constexpr uint32_t kLayers = 5, kExperts = 7;
  auto geometry = layout::GeometryView::Make(layout::testing::SmallGeometry(kLayers, kExperts, 6));
  ASSERT_TRUE(geometry.ok()) << geometry.status().message();
  std::mt19937_64 random(7);
  size_t shared = 0, changed = 0;
  for (int round = 0; round < 100; ++round) {
    const auto ranks = static_cast<uint32_t>(1 + random() % 6);
    v1::Layout layout = layout::testing::RandomLayout(*geometry, ranks, 2, random);
    const std::string member = layout.members(static_cast<int>(random() % ranks)).id();
    const auto build = [&](const Maps* before) {
      auto maps = Maps::Build(std::make_shared<const v1::Layout>(layout), layout::HashOf(layout),
                              *geometry, member, {}, before);
      EXPECT_TRUE(maps.ok()) << maps.status().message();
      return std::move(maps).value();
    };
    std::vector<uint8_t> banks(layout.banks() * geometry->bank_pitch());
    std::unique_ptr<Maps> now = build(nullptr);
    now->Resolve(banks.data(), *geometry);
    for (int flip = 0; flip < 4; ++flip) {
      const v1::Layout other = layout::testing::RandomLayout(*geometry, ranks, 2, random);
      const auto layer = static_cast<int>(random() % kLayers);
      *layout.mutable_layers(layer) = other.layers(layer);
      layout.set_epoch(layout.epoch() + 1);
      if (!layout::Validate(layout, *geometry).ok()) break;  // two layers in one bank
      std::unique_ptr<Maps> next = build(now.get());
      for (uint32_t l = 0; l < kLayers; ++l) {
        const bool same = next->get()->layers[l].attention == now->get()->layers[l].attention;
        (same ? shared : changed) += 1;
        if (l != static_cast<uint32_t>(layer)) EXPECT_TRUE(same);
      }
      next->Resolve(banks.data(), *geometry);
      const std::unique_ptr<Maps> alone = build(nullptr);
      alone->Resolve(banks.data(), *geometry);
      now = std::move(next);
      ASSERT_EQ(ContentOf(*now->get(), kLayers, kExperts),
                ContentOf(*alone->get(), kLayers, kExperts));
    }
  }
  EXPECT_GT(shared, 300u);
  EXPECT_GT(changed, 50u);
}

// Ranks are other members, so no layer can be shared.
TEST(Maps, ShareNothingWithAnotherWorld) {
  auto geometry = layout::GeometryView::Make(layout::testing::SmallGeometry(2, 4, 6));
  std::mt19937_64 random(1);
  v1::Layout layout = layout::testing::RandomLayout(*geometry, 3, 0, random);
  const auto build = [&](const std::string& member, const Maps* before) {
    return std::move(Maps::Build(std::make_shared<const v1::Layout>(layout), layout::HashOf(layout),
                                 *geometry, member, {}, before)
                         .value());
  };
  const auto first = build(layout.members(0).id(), nullptr);
  EXPECT_NE(build(layout.members(1).id(), first.get())->get()->layers[0].attention,
            first->get()->layers[0].attention);
  layout.mutable_members(2)->set_id("somebody-else/0/1");
  EXPECT_NE(build(layout.members(0).id(), first.get())->get()->layers[0].attention,
            first->get()->layers[0].attention);
}

TEST(Maps, RejectInvalidLayout) {
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
