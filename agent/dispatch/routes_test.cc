#include "agent/dispatch/routes.h"

#include <gtest/gtest.h>

#include "agent/dispatch/testing/layout.h"

namespace tangram::dispatch {
namespace {

using testing::Layout;
using testing::Placed;

TEST(Routes, ListEveryReplicaWithItsRanksAndOwnPieces) {
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

TEST(Routes, NumberReplicasPerLayer) {
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

TEST(Routes, AssignEquallyManyExclusiveOwnersToEachReplica) {
  // The choice of each rank for its own rows, for one expert.
  const auto own = [](uint32_t ranks, Placed placed) {
    Layout layout(ranks, 1);
    layout.AddLayer({std::move(placed)});
    std::vector<uint32_t> out;
    for (uint32_t r = 0; r < ranks; ++r)
      out.push_back(Routes::Of(layout.Maps(r), layout.model())->Layer(0).own[0]);
    return out;
  };
  const auto is = [](std::vector<uint32_t> choices) { return choices; };
  constexpr uint32_t none = kInTurn;
  EXPECT_EQ(own(3, {{{2, 0, 4}}, {{0, 0, 4}}}), is({1, none, 0})) << "whole copies";
  EXPECT_EQ(own(2, {{{1, 0, 4}}}), is({none, none})) << "one copy needs no turns";
  EXPECT_EQ(own(4, {{{0, 0, 2}, {1, 2, 2}}, {{2, 0, 2}, {3, 2, 2}}}), is({0, 0, 1, 1}))
      << "both cut over two";
  EXPECT_EQ(own(3, {{{1, 0, 4}}, {{0, 0, 1}, {2, 1, 3}}}), is({1, 0, none}))
      << "one is whole: of the other one rank, too";
  EXPECT_EQ(own(3, {{{0, 0, 2}, {1, 2, 2}}, {{0, 0, 2}, {2, 2, 2}}}), is({none, 0, 1}))
      << "both need rank 0";
  EXPECT_EQ(own(3, {{{0, 0, 4}}, {{0, 0, 4}}, {{1, 0, 4}}}), is({none, none, none}))
      << "two lie on one rank";
}

TEST(Routes, RejectLayoutWithMissingExpert) {
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
}  // namespace tangram::dispatch
