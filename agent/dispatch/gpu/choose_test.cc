// The destination of each row: compares the kernels with Choose, which the host's exchange uses.
#include <gtest/gtest.h>

#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

TEST(DeviceChoose, MatchesHostChoiceForEveryRow) {
  std::mt19937 draw(5);
  for (int round = 0; round < 40; ++round) {
    const uint32_t ranks = 1 + draw() % 5, experts = 1 + draw() % 9, top_k = 1 + draw() % 4;
    Layout layout = Drawn(ranks, experts, draw);
    DeviceOptions options{.format = FormatOf(kKinds[0], experts, 4, top_k)};
    options.format.most_tokens = 200;
    options.most_ranks = ranks;
    options.most_locals = 3 * experts;
    options.moe_layers = 2;
    options.most_blocks = 1 + draw() % 4;
    DeviceWorld world(testing::Where::kHost, ranks, options);
    world.Enter(1, layout);
    DeviceRank& rank = world[0];
    std::vector<uint8_t> active(ranks, 1);
    for (uint32_t r = 1; r < ranks; ++r) {
      if (draw() % 4 != 0) continue;
      active[r] = 0;
      ASSERT_TRUE(rank.buffer().Mask(r, "drawn", rank.queue()).ok());
    }
    const auto routes = RoutesOf(layout, 0);
    std::vector<uint32_t> turns[2] = {std::vector<uint32_t>(experts),
                                      std::vector<uint32_t>(experts)};
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t layer = draw() % 2;
      const Own own = DrawnRows(options.format, draw() % 201, draw);
      Plan plan;
      ASSERT_TRUE(Choose(options.format, routes->Layer(layer), own.rows(Element::kF32), active,
                         ranks, turns[layer], &plan)
                      .ok());
      const auto handle = rank.buffer().Send(layer, rank.Put(own), rank.queue());
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      const SentRows sent = rank.buffer().sent(*handle);
      const auto counts = DownloadList<uint32_t>(rank.queue(), sent.counts, ranks).value();
      const auto routed = DownloadList<uint32_t>(rank.queue(), sent.routed, experts).value();
      EXPECT_EQ(routed, plan.routed);
      std::vector<Contribution> homeless;
      const auto choices =
          DownloadList<int32_t>(rank.queue(), sent.choices, own.experts.size()).value();
      for (uint32_t i = 0; i < choices.size(); ++i)
        if (choices[i] < 0) homeless.push_back({i / top_k, i % top_k, own.experts[i]});
      EXPECT_EQ(homeless, plan.homeless);
      for (uint32_t r = 0; r < ranks; ++r) {
        const auto rows =
            DownloadList<uint32_t>(rank.queue(), sent.rows + uint64_t{r} * 200 * 4, counts[r]);
        ASSERT_EQ(*rows, plan.to[r].rows) << "round " << round << ", rank " << r;
        for (size_t i = 0; i < plan.to[r].rows.size(); ++i)
          for (uint32_t k = 0; k < top_k; ++k) {
            const int32_t choice = plan.to[r].choices[i * top_k + k];
            if (choice != kNone) EXPECT_EQ(choice, choices[(*rows)[i] * top_k + k]);
          }
      }
    }
  }
}

TEST(DeviceChoose, ReportsAndDropsRowWithInvalidExpert) {
  Layout layout(1, 2);
  layout.AddLayer({{{{0, 0, kGranules}}}, {{{0, 0, kGranules}}}});
  DeviceOptions options{.format = FormatOf(kKinds[0], 2, 4, 1)};
  options.most_locals = 2;
  options.most_ranks = 1;
  DeviceWorld world(testing::Where::kHost, 1, options);
  world.Enter(1, layout);
  DeviceRank& rank = world[0];
  std::mt19937 draw(1);
  for (const int32_t bad : {2, -1, INT32_MAX}) {
    Own own = DrawnRows(options.format, 5, draw);
    own.experts[3] = bad;
    const auto handle = rank.buffer().Send(0, rank.Put(own), rank.queue());
    ASSERT_TRUE(rank.buffer().Receive(*handle, rank.queue()).ok());
    const uint64_t outputs = rank.buffer().NextCombineBuffer(*handle);
    rank.Compute(RoutesOf(layout, 0)->Layer(0), *handle, outputs);
    ASSERT_TRUE(rank.buffer().SendBack(*handle, outputs, rank.queue()).ok());
    ASSERT_TRUE(rank.buffer().Finish(*handle, rank.y(), rank.queue()).ok());
    const auto report = rank.buffer().ReportOf(*handle, rank.queue());
    EXPECT_EQ(report.status().message(), "row 3 is for expert " + std::to_string(bad) + " of 2");
  }
}

}  // namespace
}  // namespace tangram::dispatch
