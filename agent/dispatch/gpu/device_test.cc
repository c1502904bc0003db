// Dispatch and combine in device memory: guarantees of the calls besides results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

// Expert r only on rank r.
Layout OnePerRank(uint32_t ranks) {
  Layout layout(ranks, ranks);
  std::vector<Placed> experts;
  for (uint32_t r = 0; r < ranks; ++r) experts.push_back({{{r, 0, kGranules}}});
  layout.AddLayer(experts);
  return layout;
}

DeviceOptions Plain(uint32_t ranks, uint32_t experts, uint32_t hidden, uint32_t top_k) {
  DeviceOptions options{.format = FormatOf(kKinds[0], experts, hidden, top_k)};
  options.most_ranks = ranks;
  options.most_locals = experts;
  return options;
}

TEST(Device, PacksRowsByExpertThenRankWithCounts) {
  Layout layout(2, 3);
  // Rank 0 has experts 0 and 2 and a replica of 1; rank 1 has expert 1.
  layout.AddLayer({{{{0, 0, 1}}}, {{{0, 0, 1}}, {{1, 0, 1}}}, {{{0, 0, 1}}}});
  DeviceWorld world(testing::Where::kHost, 2, Plain(2, 3, 1, 2));
  world.Enter(1, layout);
  OnEach(2, [&](uint32_t r) {
    Own own;
    own.x = r == 0 ? std::vector<float>{1, 2} : std::vector<float>{10, 20, 30};
    own.experts =
        r == 0 ? std::vector<int32_t>{2, 0, 1, 2} : std::vector<int32_t>{0, 2, 1, 0, 2, 1};
    own.count = static_cast<uint32_t>(own.x.size());
    own.weights.assign(own.experts.size(), 1);
    DeviceRank& rank = world[r];
    const auto handle = rank.buffer().Send(0, rank.Put(own), rank.queue());
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(rank.buffer().Receive(*handle, rank.queue()).ok());
    const auto came = rank.Fetch(*handle);
    const auto* rows = reinterpret_cast<const float*>(came->x.data());
    const std::vector<float> found(rows, rows + came->packed.rows);
    // Each rank's rows for expert 1 go to its own replica.
    if (r == 0) {
      EXPECT_THAT(came->choices, ::testing::ElementsAre(0, 1, 3));
      EXPECT_THAT(came->counts, ::testing::ElementsAre(3, 1, 4));
      EXPECT_THAT(came->offsets, ::testing::ElementsAre(0, 3, 4, 8));
      EXPECT_THAT(found, ::testing::ElementsAre(1, 10, 20, 2, 1, 2, 10, 30));
    } else {
      EXPECT_THAT(came->choices, ::testing::ElementsAre(2));
      EXPECT_THAT(came->counts, ::testing::ElementsAre(2));
      EXPECT_THAT(came->offsets, ::testing::ElementsAre(0, 2));
      EXPECT_THAT(found, ::testing::ElementsAre(20, 30));
    }
  });
}

class DeviceOverflow : public ::testing::TestWithParam<testing::Where> {};

// 12 rows of each rank for expert 1, and room for 20. As on the host, the last received rows are
// left out, nothing is written beyond the room, and their ranks get a report.
TEST_P(DeviceOverflow, IsReportedWithCountsAndNeverWritten) {
  Layout layout = OnePerRank(2);
  DeviceOptions options = Plain(2, 2, 16, 1);
  options.packed_capacity = 20;
  DeviceWorld world(GetParam(), 2, options);
  world.Enter(1, layout);
  std::mt19937 draw(9);
  std::vector<Own> own;
  std::vector<std::shared_ptr<const Routes>> routes;
  for (uint32_t r = 0; r < 2; ++r) {
    own.push_back(DrawnRows(options.format, 12, draw, 1));
    routes.push_back(RoutesOf(layout, r));
  }
  OnEach(2, [&](uint32_t r) {
    DeviceRank& rank = world[r];
    DeviceBuffer& buffer = rank.buffer();
    const auto handle = buffer.Send(0, rank.Put(own[r]), rank.queue());
    ASSERT_TRUE(handle.ok());
    // The memory after the room: the outputs of NextCombineBuffer.
    const uint64_t behind = buffer.NextCombineBuffer(*handle);
    EXPECT_EQ(behind - buffer.packed(*handle).x, 20u * 16 * 4);
    const std::vector<uint8_t> pattern(64, 0x5a);
    ASSERT_TRUE(Upload(rank.queue(), behind, pattern.data(), pattern.size()).ok());
    ASSERT_TRUE(buffer.Receive(*handle, rank.queue()).ok());
    EXPECT_EQ(rank.Fetch(*handle)->packed.rows, r == 1 ? 20u : 0u);
    EXPECT_EQ(DownloadList<uint8_t>(rank.queue(), behind, 64).value(), pattern);
    rank.Compute(routes[r]->Layer(0), *handle, rank.outputs());
    ASSERT_TRUE(buffer.SendBack(*handle, rank.outputs(), rank.queue()).ok());
    ASSERT_TRUE(buffer.Finish(*handle, rank.y(), rank.queue()).ok());
    const auto report = buffer.ReportOf(*handle, rank.queue());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->overflow.has_value(), r == 1);
    if (r == 1) {
      EXPECT_EQ(report->overflow->wanted, 24u);
      EXPECT_EQ(report->overflow->capacity, 20u);
    }
    std::vector<Contribution> missing;
    if (r == 1)
      for (uint32_t row = 8; row < 12; ++row) missing.push_back({row, 0, 1});
    EXPECT_EQ(report->missing, missing);
    EXPECT_EQ(Doubles(options.format, rank.Y(12).data(), own[r].x.size()),
              Serial(options.format, kGranules, own[r], missing));
  });
}

INSTANTIATE_TEST_SUITE_P(Dispatch, DeviceOverflow,
#ifdef TANGRAM_FAKE_CUDA
                         ::testing::Values(testing::Where::kHost, testing::Where::kCuda,
                                           testing::Where::kNccl, testing::Where::kUcx),
#else
                         ::testing::Values(testing::Where::kHost, testing::Where::kUcx),
#endif
                         [](const auto& info) { return testing::NameOf(info.param); });

TEST(Device, RejectsHandleOutsideItsPair) {
  Layout layout = OnePerRank(1);
  DeviceWorld world(testing::Where::kHost, 1, Plain(1, 1, 1, 1));
  world.Enter(1, layout);
  DeviceRank& rank = world[0];
  DeviceBuffer& buffer = rank.buffer();
  device::Queue& queue = rank.queue();
  std::mt19937 draw(1);
  const Own own = DrawnRows(rank.format(), 1, draw);
  const DeviceRows rows = rank.Put(own);
  const Handle first = buffer.Send(0, rows, queue).value();
  EXPECT_EQ(buffer.SendBack(first, rank.outputs(), queue).message(),
            "Combine of pair 0 of epoch 1: its dispatch is not through yet");
  const Handle second = buffer.Send(0, rows, queue).value();
  EXPECT_EQ(buffer.Send(0, rows, queue).status().message(),
            "two pairs are open: the combine of pair 0 comes first");
  ASSERT_TRUE(buffer.Receive(first, queue).ok());
  ASSERT_TRUE(buffer.Receive(second, queue).ok());
  EXPECT_EQ(buffer.Receive(second, queue).message(),
            "Receive of pair 1 of epoch 1: it is past that");
  EXPECT_EQ(buffer.SendBack(second, rank.outputs(), queue).message(),
            "the combine of pair 1 before that of pair 0");
  ASSERT_TRUE(buffer.SendBack(first, rank.outputs(), queue).ok());
  ASSERT_TRUE(buffer.SendBack(second, rank.outputs(), queue).ok());
  EXPECT_EQ(buffer.Finish(second, rank.y(), queue).message(),
            "Finish of pair 1 before that of pair 0");
  ASSERT_TRUE(buffer.Finish(first, rank.y(), queue).ok());
  EXPECT_EQ(
      buffer.SendBack(first, rank.outputs(), queue).message(),
      "Combine of pair 0 of epoch 1: it is over: a handle is for one dispatch and its combine");
  ASSERT_TRUE(buffer.Finish(second, rank.y(), queue).ok());
  const Handle third = buffer.Send(0, rows, queue).value();
  world.Enter(2, layout);
  EXPECT_EQ(buffer.Receive(third, queue).message(),
            "Receive of pair 2 of epoch 1: the epoch is 2 by now");
  EXPECT_EQ(buffer.ReportOf(third, queue).status().message(),
            "the report of pair 2 of epoch 1: only the pair that finished last has a report");
  EXPECT_EQ(buffer.UpdateMembers(2, world.ids(), RoutesOf(layout, 0), queue).message(),
            "epoch 2 after 2");
  EXPECT_EQ(buffer.Send(1, rows, queue).status().message(),
            "no active layout has layer 1 of experts");
  DeviceRows many = rows;
  many.count = 65;
  EXPECT_EQ(buffer.Send(0, many, queue).status().message(),
            "65 rows in one dispatch, and the most are 64");
}

// Layer 1's dispatch before layer 0's combine, over every transport.
class DeviceOverlap : public ::testing::TestWithParam<testing::Where> {};

TEST_P(DeviceOverlap, OverlapsDispatchWithCombineOfPreviousPair) {
  const uint32_t ranks = 3;
  Layout layout = OnePerRank(ranks);
  const DeviceOptions options = Plain(ranks, ranks, 64, 2);
  DeviceWorld world(GetParam(), ranks, options);
  world.Enter(1, layout);
  std::mt19937 draw(2);
  std::vector<std::vector<Own>> own(ranks);
  std::vector<std::shared_ptr<const Routes>> routes;
  for (uint32_t r = 0; r < ranks; ++r) {
    routes.push_back(RoutesOf(layout, r));
    for (int i = 0; i < 6; ++i) own[r].push_back(DrawnRows(options.format, draw() % 65, draw));
  }
  OnEach(ranks, [&](uint32_t r) {
    DeviceRank& rank = world[r];
    DeviceBuffer& buffer = rank.buffer();
    device::Queue& queue = rank.queue();
    std::vector<Handle> handles{buffer.Send(0, rank.Put(own[r][0], 0), queue).value()};
    for (size_t i = 0; i < own[r].size(); ++i) {
      if (i + 1 < own[r].size())
        handles.push_back(buffer.Send(0, rank.Put(own[r][i + 1], (i + 1) % 2), queue).value());
      ASSERT_TRUE(buffer.Receive(handles[i], queue).ok());
      const uint64_t outputs = buffer.NextCombineBuffer(handles[i]);
      rank.Compute(routes[r]->Layer(0), handles[i], outputs);
      ASSERT_TRUE(buffer.SendBack(handles[i], outputs, queue).ok());
      ASSERT_TRUE(buffer.Finish(handles[i], rank.y(i % 2), queue).ok());
      const auto report = buffer.ReportOf(handles[i], queue);
      ASSERT_TRUE(report.ok()) << report.status().message();
      ASSERT_TRUE(report->whole());
      EXPECT_EQ(Doubles(options.format, rank.Y(own[r][i].count, i % 2).data(), own[r][i].x.size()),
                Serial(options.format, kGranules, own[r][i]));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Dispatch, DeviceOverlap,
#ifdef TANGRAM_FAKE_CUDA
                         ::testing::Values(testing::Where::kHost, testing::Where::kCuda,
                                           testing::Where::kImported, testing::Where::kNccl,
                                           testing::Where::kUcx),
#else
                         ::testing::Values(testing::Where::kHost, testing::Where::kUcx),
#endif
                         [](const auto& info) { return testing::NameOf(info.param); });

TEST(Device, RejectsLayoutsAndOptionsBeyondCapacity) {
  Layout layout = OnePerRank(2);
  DeviceOptions options = Plain(2, 2, 4, 1);
  DeviceWorld world(testing::Where::kHost, 2, options);
  world.Enter(1, layout);
  DeviceRank& rank = world[0];
  Layout wide(2, 2);
  for (int l = 0; l < 2; ++l) wide.AddLayer({{{{0, 0, 4}}}, {{{0, 0, 4}}}});
  EXPECT_EQ(rank.buffer().UpdateMembers(2, world.ids(), RoutesOf(wide, 0), rank.queue()).message(),
            "a layout of 2 layers of experts; there is room for 1");
  Layout copies(2, 2);
  copies.AddLayer({{{{0, 0, 4}}, {{0, 0, 4}}}, {{{0, 0, 4}}}});
  EXPECT_EQ(
      rank.buffer().UpdateMembers(2, world.ids(), RoutesOf(copies, 0), rank.queue()).message(),
      "layer 0 of experts has 3 choices here; there is room for 2");
  EXPECT_EQ(
      rank.buffer()
          .UpdateMembers(2, std::vector<MemberId>{{"x", 1}}, RoutesOf(layout, 0), rank.queue())
          .message(),
      NameOf(rank.buffer().self()) + " is no member of this world");
  const auto why = [](DeviceOptions bad) { return bad.Check().message(); };
  options.most_ranks = 65;
  EXPECT_EQ(why(options), "most_ranks is 65: 1 to 64");
  options.most_ranks = 2;
  options.format.most_tokens = 0;
  EXPECT_EQ(why(options), "format of rows: most_tokens is 0: memory has no bound then");
  options.format.most_tokens = 1 << 20;
  options.format.hidden = 1 << 13;
  EXPECT_EQ(why(options),
            "format of rows: 1048576 rows of 8192 numbers: kernels count them in 32 bits");
}

}  // namespace
}  // namespace tangram::dispatch
