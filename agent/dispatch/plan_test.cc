#include "agent/dispatch/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>

#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using testing::Drawn;
using testing::kGranules;
using testing::Layout;
using testing::Placed;

constexpr uint32_t kEach = 60;  // rows of a source for an expert: divisible by 1 to 6 replicas

Routes RoutesFor(Layout& layout, uint32_t rank) {
  return Routes::Of(layout.Maps(rank), layout.model()).value();
}

// One source, top 1: this many rows for each expert, in random order.
struct Source {
  Source(std::vector<uint32_t> rows_for, std::mt19937& draw) {
    for (uint32_t e = 0; e < rows_for.size(); ++e)
      experts.insert(experts.end(), rows_for[e], static_cast<int32_t>(e));
    std::ranges::shuffle(experts, draw);
    weights.assign(experts.size(), 1);
  }
  Rows rows() const {
    return {static_cast<uint32_t>(experts.size()), nullptr, experts.data(), weights.data()};
  }
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Plan Chosen(const LayerRoutes& layer, const Source& source, std::span<const uint8_t> active,
            uint32_t ranks) {
  const Format format{.hidden = 1, .top_k = 1, .experts = layer.experts()};
  std::vector<uint32_t> turns(layer.experts());
  Plan plan;
  EXPECT_TRUE(Choose(format, layer, source.rows(), active, ranks, turns, &plan).ok());
  return plan;
}

// Adds the number of rows that each rank gets for each choice: [ranks][choices].
void Add(const Plan& plan, std::vector<std::vector<uint32_t>>& got) {
  for (uint32_t r = 0; r < got.size(); ++r)
    for (const int32_t choice : plan.to[r].choices)
      if (choice != kNone) ++got[r][choice];
}

// The ranks of a replica from the layout itself, independent of Routes.
std::vector<uint32_t> RanksOf(const std::vector<testing::PlacedPiece>& alternative) {
  std::vector<uint32_t> ranks;
  for (const auto& piece : alternative) ranks.push_back(piece.rank);
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// Whole replicas on different ranks, as the operator places them: from one up to all ranks have
// one.
Layout WholeCopies(uint32_t ranks, uint32_t experts, std::mt19937& draw) {
  Layout layout(ranks, experts);
  for (int l = 0; l < 2; ++l) {
    std::vector<Placed> of(experts);
    for (Placed& expert : of) {
      std::vector<uint32_t> order(ranks);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::shuffle(order, draw);
      for (uint32_t a = 0; a <= draw() % ranks; ++a) expert.push_back({{order[a], 0, kGranules}});
    }
    layout.AddLayer(std::move(of));
  }
  return layout;
}

// Each replica is cut over a separate group of ranks.
Layout SlicedCopies(uint32_t ranks, uint32_t experts, std::mt19937& draw) {
  Layout layout(ranks, experts);
  for (int l = 0; l < 2; ++l) {
    std::vector<Placed> of(experts);
    for (Placed& expert : of) {
      const uint32_t shards = std::min(2u, ranks), groups = ranks / shards;
      for (uint32_t a = 0, first = draw(); a <= draw() % groups; ++a) {
        auto& alternative = expert.emplace_back();
        for (uint32_t s = 0; s < shards; ++s)
          alternative.push_back(
              {(first + a) % groups * shards + s, s * kGranules / shards, kGranules / shards});
      }
    }
    layout.AddLayer(std::move(of));
  }
  return layout;
}

TEST(Choices, SpreadEqualSourcesEvenlyWhenRanksAreMasked) {
  std::mt19937 draw(11);
  uint64_t kept = 0, masked = 0, homeless = 0;
  for (int round = 0; round < 300; ++round) {
    const uint32_t ranks = 1 + draw() % 6, experts = 1 + draw() % 6;
    Layout layout = round % 3 == 0   ? Drawn(ranks, experts, draw)
                    : round % 3 == 1 ? WholeCopies(ranks, experts, draw)
                                     : SlicedCopies(ranks, experts, draw);
    std::vector<uint8_t> active(ranks, 1);
    for (uint8_t& there : active) there = draw() % 4 != 0 ? 1 : 0;
    for (uint32_t l = 0; l < 2; ++l) {
      const std::vector<Placed>& placed = layout.layer(l);
      std::vector<std::vector<uint32_t>> got;
      std::vector<uint32_t> nowhere(experts);
      uint32_t sources = 0;
      for (uint32_t r = 0; r < ranks; ++r) {
        if (active[r] == 0) continue;
        ++sources;
        const Routes routes = RoutesFor(layout, r);
        const LayerRoutes layer = routes.Layer(l);
        got.resize(ranks, std::vector<uint32_t>(layer.choices()));
        const Source source(std::vector<uint32_t>(experts, kEach), draw);
        const Plan plan = Chosen(layer, source, active, ranks);
        for (const Contribution& none : plan.homeless) ++nowhere[none.expert];
        Add(plan, got);
        // With whole replicas on different ranks, rows with a local replica stay local.
        for (uint32_t e = 0; round % 3 == 1 && e < experts; ++e)
          for (uint32_t a = 0; a < placed[e].size(); ++a) {
            if (placed[e][a][0].rank != r) continue;
            const auto here =
                std::ranges::count(plan.to[r].choices, static_cast<int32_t>(layer.first[e] + a));
            EXPECT_EQ(here, kEach);
            kept += placed[e].size() > 1 ? 1 : 0;
          }
      }
      uint32_t choice = 0;
      for (uint32_t e = 0; sources > 0 && e < experts; ++e) {
        const auto there = [&](const auto& alternative) {
          return std::ranges::all_of(RanksOf(alternative), [&](uint32_t r) { return active[r]; });
        };
        const auto left = static_cast<uint32_t>(std::ranges::count_if(placed[e], there));
        masked += left > 1 && left < placed[e].size() ? 1 : 0;
        homeless += left == 0 ? 1 : 0;
        EXPECT_EQ(nowhere[e], left == 0 ? sources * kEach : 0);
        for (const auto& alternative : placed[e]) {
          const std::vector<uint32_t> at = RanksOf(alternative);
          for (uint32_t r = 0; r < ranks; ++r)
            EXPECT_EQ(got[r][choice], there(alternative) && std::ranges::binary_search(at, r)
                                          ? sources * kEach / left
                                          : 0)
                << "round " << round << ", layer " << l << ", expert " << e << ", rank " << r;
          ++choice;
        }
      }
    }
  }
  EXPECT_GT(kept, 300u);
  EXPECT_GT(masked, 50u);
  EXPECT_GT(homeless, 50u);
}

// With different row counts of sources, a replica gets the rows of its rank, and its share of the
// rows of ranks without a replica. So it differs from an even share by at most the rows of its
// rank.
TEST(Choices, DifferByAtMostOwnRowsForUnequalSources) {
  std::mt19937 draw(12);
  bool uneven = false;
  for (int round = 0; round < 100; ++round) {
    const uint32_t ranks = 2 + draw() % 5, experts = 4;
    Layout layout = WholeCopies(ranks, experts, draw);
    std::vector<std::vector<uint32_t>> brings(ranks), got;
    std::vector<uint32_t> first;
    for (uint32_t r = 0; r < ranks; ++r) {
      for (uint32_t e = 0; e < experts; ++e) brings[r].push_back(draw() % 5 * kEach);
      const Routes routes = RoutesFor(layout, r);
      const LayerRoutes layer = routes.Layer(0);
      first.assign(layer.first.begin(), layer.first.end());
      got.resize(ranks, std::vector<uint32_t>(layer.choices()));
      Add(Chosen(layer, Source(brings[r], draw), {}, ranks), got);
    }
    for (uint32_t e = 0; e < experts; ++e) {
      const Placed& placed = layout.layer(0)[e];
      const auto copies = static_cast<uint32_t>(placed.size());
      uint32_t all = 0, own = 0;
      for (uint32_t r = 0; r < ranks; ++r) all += brings[r][e];
      for (const auto& copy : placed) own += brings[copy[0].rank][e];
      for (uint32_t a = 0; a < copies; ++a) {
        const uint32_t rank = placed[a][0].rank, has = got[rank][first[e] + a];
        EXPECT_EQ(has, copies == 1 ? all : brings[rank][e] + (all - own) / copies);
        uint32_t most = 0;
        for (const auto& copy : placed) most = std::max(most, brings[copy[0].rank][e]);
        EXPECT_LE(std::abs(static_cast<double>(has) - static_cast<double>(all) / copies), most);
        uneven = uneven || has * copies != all;
      }
    }
  }
  EXPECT_TRUE(uneven);
}

// Bytes saved on the wire, compared with the same plan with all rows in turn: DeepSeek-V3's rows,
// top 8 of 256, 288 slots. The most requested experts have replicas.
TEST(Choices, SaveTrafficWithLocalReplicas) {
  constexpr uint32_t kExperts = 256, kRedundant = 32, kTopK = 8, kTokens = 512;
  const Format format{.hidden = 7168, .top_k = kTopK, .experts = kExperts};
  std::mt19937 draw(13);
  std::lognormal_distribution<double> popularity(0, 1);
  std::vector<double> popular(kExperts);
  for (double& p : popular) p = popularity(draw);
  std::vector<uint32_t> copies(kExperts, 1);
  for (uint32_t i = 0; i < kRedundant; ++i) {  // the next to the expert with the hottest replicas
    uint32_t hottest = 0;
    for (uint32_t e = 1; e < kExperts; ++e)
      if (popular[e] / copies[e] > popular[hottest] / copies[hottest]) hottest = e;
    ++copies[hottest];
  }
  for (const uint32_t ranks : {8u, 32u}) {
    Layout layout(ranks, kExperts);
    std::vector<Placed> of(kExperts);
    uint32_t next = 0;
    for (uint32_t e = 0; e < kExperts; ++e)
      for (uint32_t c = 0; c < std::min(copies[e], ranks); ++c)
        of[e].push_back({{next++ % ranks, 0, kGranules}});
    layout.AddLayer(std::move(of));
    uint64_t rows[2] = {};  // [local first, in turn]
    for (uint32_t r = 0; r < ranks; ++r) {
      const Routes routes = RoutesFor(layout, r);
      const LayerRoutes layer = routes.Layer(0);
      LayerRoutes in_turn = layer;
      const std::vector<uint32_t> none(kExperts, kInTurn);
      in_turn.own = none;
      std::vector<int32_t> experts;
      for (uint32_t t = 0; t < kTokens;
           ++t) {  // without repetition: the greatest of p / exponential
        std::vector<std::pair<double, int32_t>> keys;
        for (uint32_t e = 0; e < kExperts; ++e)
          keys.emplace_back(-std::exponential_distribution<double>(popular[e])(draw),
                            static_cast<int32_t>(e));
        std::ranges::partial_sort(keys, keys.begin() + kTopK, std::greater<>());
        for (uint32_t k = 0; k < kTopK; ++k) experts.push_back(keys[k].second);
      }
      const std::vector<float> weights(experts.size(), 1);
      for (const int way : {0, 1}) {
        std::vector<uint32_t> turns(kExperts);
        Plan plan;
        ASSERT_TRUE(Choose(format, way == 0 ? layer : in_turn,
                           {kTokens, nullptr, experts.data(), weights.data()}, {}, ranks, turns,
                           &plan)
                        .ok());
        for (uint32_t to = 0; to < ranks; ++to)
          if (to != r) rows[way] += plan.to[to].rows.size();
      }
    }
    const size_t row = format.stride(Lane::kDispatch) + format.stride(Lane::kCombine);
    std::cout << ranks << " ranks: " << rows[1] * row << " bytes of rows on the wire in turn, "
              << rows[0] * row << " with local copies first: "
              << 100 - 100.0 * static_cast<double>(rows[0]) / static_cast<double>(rows[1])
              << " % less\n";
    EXPECT_LT(rows[0], rows[1]);
  }
}

}  // namespace
}  // namespace tangram::dispatch
