#include "e2e/engine/pace/pacer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "e2e/engine/testing/pace_table.h"

namespace tangram::engine {
namespace {

using testing::FixedTable;
using Groups = std::vector<std::vector<uint32_t>>;

// A layout of one expert in every layer.
struct World {
  void Layer(const std::vector<uint32_t>& experts, const Groups& attention) {
    std::vector<tg_piece>& own = pieces.emplace_back();
    for (const uint32_t rank : experts) own.push_back({rank, 0, 1, nullptr});
    expert.push_back({1, static_cast<uint32_t>(own.size()), own.data()});
    tg_layer_map map{};
    map.layer = static_cast<uint32_t>(layers.size());
    map.moe_ordinal = static_cast<int32_t>(layers.size());
    map.experts = &expert.back();
    layers.push_back(map);
    kv::LayerGroups& of = groups.emplace_back();
    for (const auto& ranks : attention) of.push_back({ranks, {}});
    maps.layers = layers.data();
  }
  tg_maps maps = TG_INIT(tg_maps);
  std::deque<std::vector<tg_piece>> pieces;
  std::deque<tg_expert> expert;
  std::vector<tg_layer_map> layers;
  std::vector<kv::LayerGroups> groups;
};

double Milliseconds(Pacer::Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

const std::chrono::system_clock::time_point kNoon{std::chrono::seconds(1000)};
const std::vector<std::vector<PacedItem>> kOne = {{{4, 1}}, {}};

PaceOptions Options() {
  PaceOptions out;
  out.table = FixedTable({{{2, 1, 1}, 10}, {{2, 2, 2}, 30}, {{2, 2, 1}, 50}, {{1, 1, 1}, 70}});
  return out;
}

// One expert in a layer: with g = 1 only one rank holds it, so the attention's ranks count.
TEST(PacerTest, WeighsLayersOfMixedLayoutByShare) {
  World world;
  world.Layer({0}, {{0}, {1}});
  world.Layer({0, 1}, {{0, 1}});
  world.Layer({1, 0}, {{0, 1}});
  world.Layer({1}, {{0}, {1}});
  const Pacer pacer(Options());
  std::string told;
  const auto layout = pacer.LayoutOf(world.maps, world.groups, 1, false, &told);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  EXPECT_EQ(layout->parts.size(), 2u);
  EXPECT_EQ(told, "");
  EXPECT_NEAR(Milliseconds(pacer.Of(*layout, kOne, 1, 1, 1, kNoon)), 10 * .5 + 30 * .5, 1e-3);
  EXPECT_EQ(pacer.Of(*layout, {{}, {}}, 1, 1, 1, kNoon).count(), 0) << "nothing to do";
}

TEST(PacerTest, RejectsShapeMissingFromTableUnlessForced) {
  World world;
  world.Layer({0, 1}, {{0}, {1}});
  PaceOptions options = Options();
  options.table = FixedTable({{{2, 2, 2}, 30}});
  const Pacer pacer(options);
  std::string told;
  const auto refused = pacer.LayoutOf(world.maps, world.groups, 1, false, &told);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("has no g=2,t=1 on 2 ranks, which layer 0 is"),
            std::string::npos)
      << refused.status().message();
  const auto taken = pacer.LayoutOf(world.maps, world.groups, 1, true, &told);
  ASSERT_TRUE(taken.ok());
  EXPECT_NE(told.find("used instead: g=2,t=2"), std::string::npos) << told;
  World wider;
  wider.Layer({0, 1, 2}, {{0}, {1}, {2}});
  EXPECT_FALSE(pacer.LayoutOf(wider.maps, wider.groups, 1, true, &told).ok()) << "no such width";
}

// A survivor holds two shares of each expert after a death.
TEST(PacerTest, SharesExpertsAmongSurvivorsAfterRepair) {
  World world;
  world.Layer({0, 1, 0}, {{0, 1}});
  const Pacer pacer(Options());
  std::string told;
  const auto layout = pacer.LayoutOf(world.maps, world.groups, 1, false, &told);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  EXPECT_EQ(layout->parts.front().shape, (PaceShape{2, 2, 2}));
}

TEST(PacerTest, AppliesDilationNoiseAndMaximum) {
  World world;
  world.Layer({0, 1}, {{0, 1}});
  PaceOptions options = Options();
  options.dilation = 3;
  options.noise = .1;
  options.seed = 7;
  std::string told;
  const Pacer pacer(options);
  const auto layout = pacer.LayoutOf(world.maps, world.groups, 1, false, &told);
  ASSERT_TRUE(layout.ok());
  double sum = 0, squares = 0;
  constexpr int kSteps = 4000;
  for (int i = 0; i < kSteps; ++i) {
    const double ms = Milliseconds(pacer.Of(*layout, kOne, 1, 2, i, kNoon));
    EXPECT_EQ(ms, Milliseconds(Pacer(options).Of(*layout, kOne, 1, 2, i, kNoon))) << "all ranks";
    sum += ms;
    squares += ms * ms;
  }
  const double mean = sum / kSteps;
  EXPECT_NEAR(mean, 90, .5);
  EXPECT_NEAR(std::sqrt(squares / kSteps - mean * mean) / mean, .1, .005);
  options.most = std::chrono::milliseconds(20);
  EXPECT_EQ(Milliseconds(Pacer(options).Of(*layout, kOne, 1, 2, 3, kNoon)), 20);
}

TEST(PacerTest, DriftIsPeriodic) {
  World world;
  world.Layer({0, 1}, {{0, 1}});
  PaceOptions options = Options();
  options.drift = .2;
  options.drift_period = std::chrono::seconds(60);
  std::string told;
  const Pacer pacer(options);
  const auto layout = pacer.LayoutOf(world.maps, world.groups, 1, false, &told);
  ASSERT_TRUE(layout.ok());
  double least = 1e9, most = 0;
  for (int s = 0; s < 60; ++s) {
    const double ms =
        Milliseconds(pacer.Of(*layout, kOne, 1, 1, 1, kNoon + std::chrono::seconds(s)));
    least = std::min(least, ms);
    most = std::max(most, ms);
  }
  EXPECT_NEAR(least, 24, .1);
  EXPECT_NEAR(most, 36, .1);
  EXPECT_NEAR(Milliseconds(pacer.Of(*layout, kOne, 1, 1, 1, kNoon)),
              Milliseconds(pacer.Of(*layout, kOne, 1, 1, 1, kNoon + std::chrono::seconds(60))),
              1e-6);
}

}  // namespace
}  // namespace tangram::engine
