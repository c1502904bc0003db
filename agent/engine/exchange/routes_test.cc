#include "agent/engine/exchange/routes.h"

#include <gtest/gtest.h>

#include "agent/engine/exchange/testing/layout.h"

namespace tangram::engine {
namespace {

using testing::Layout;
using testing::Placed;

TEST(Routes, NameEveryAlternativeWithItsRanksAndTheOwnPiecesOfIt) {
  // Expert 0: whole on rank 1, and cut over 0 and 2. Expert 1: two pieces on rank 2, one on 0.
  Layout layout(3, 2);
  layout.AddLayer({{{{1, 0, 4}}, {{0, 0, 1}, {2, 1, 3}}}, {{{2, 0, 1}, {0, 1, 2}, {2, 3, 1}}}});
  const Result<Routes> routes = Routes::Of(layout.Maps(2), layout.model());
  ASSERT_TRUE(routes.ok()) << routes.status().message();
  ASSERT_EQ(routes->moe_layers(), 1u);
  const LayerRoutes layer = routes->Layer(0);
  EXPECT_EQ(std::vector<uint32_t>(layer.first.begin(), layer.first.end()),
            (std::vector<uint32_t>{0, 2, 3}));
  const auto ranks = [&](uint32_t choice) {
    const auto of = layer.RanksOf(choice);
    return std::vector<uint32_t>(of.begin(), of.end());
  };
  EXPECT_EQ(ranks(0), (std::vector<uint32_t>{1}));
  EXPECT_EQ(ranks(1), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(ranks(2), (std::vector<uint32_t>{2, 0}));
  EXPECT_TRUE(layer.PiecesOf(0).empty());
  ASSERT_EQ(layer.PiecesOf(1).size(), 1u);
  EXPECT_EQ(layer.PiecesOf(1)[0].granule_start, 1u);
  EXPECT_EQ(layer.PiecesOf(1)[0].expert, 0u);
  ASSERT_EQ(layer.PiecesOf(2).size(), 2u);
  EXPECT_EQ(layer.PiecesOf(2)[1].granule_start, 3u);
}

TEST(Routes, LayersHaveNumbersOfTheirOwn) {
  Layout layout(2, 2);
  layout.AddLayer({{{{0, 0, 2}}}, {{{1, 0, 2}}}});
  layout.AddDenseLayer();
  layout.AddLayer({{{{1, 0, 2}}, {{0, 0, 2}}}, {{{0, 0, 1}, {1, 1, 1}}}});
  const Result<Routes> routes = Routes::Of(layout.Maps(0), layout.model());
  ASSERT_TRUE(routes.ok()) << routes.status().message();
  ASSERT_EQ(routes->moe_layers(), 2u);
  EXPECT_EQ(routes->Layer(0).choices(), 2u);
  EXPECT_EQ(routes->Layer(1).choices(), 3u);
  ASSERT_EQ(routes->Layer(1).pieces.size(), 2u);
  EXPECT_EQ(routes->Layer(1).pieces[0].choice, 1u);
}

TEST(Routes, ALayoutThatLacksAnExpertIsRefusedByName) {
  const auto told = [](std::vector<Placed> experts) {
    Layout layout(2, static_cast<uint32_t>(experts.size()));
    layout.AddLayer(std::move(experts));
    const Result<Routes> routes = Routes::Of(layout.Maps(0), layout.model());
    return routes.ok() ? "" : routes.status().message();
  };
  EXPECT_EQ(told({{}}), "epoch 7 layer 0 expert 0: it is nowhere");
  EXPECT_EQ(told({{{{0, 0, 1}}}, {{{0, 0, 0}}}}),
            "epoch 7 layer 0 expert 1: an alternative of it has no granules");
  EXPECT_EQ(told({{{{2, 0, 1}}}}),
            "epoch 7 layer 0 expert 0: a piece of it is on rank 2 of a world of 2");
}

}  // namespace
}  // namespace tangram::engine
