// The grid of dispatch and combine in device memory: compared with serial sums, and bit for bit
// with the host's exchange.
#include <gtest/gtest.h>

#include <cmath>

#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr uint32_t kTopK = 3;

// The caller waits after each part; or puts receiving on the queue at any moment; or waits only at
// the end, as a graph does, except for the experts, which compute on the host here.
enum class How { kWait, kHook };

DeviceOptions OptionsOf(const Kind& kind, uint32_t experts, uint32_t hidden, uint32_t ranks) {
  DeviceOptions options{.format = FormatOf(kind, experts, hidden, kTopK)};
  options.most_ranks = ranks;
  options.most_locals = 3 * experts;
  options.moe_layers = 2;
  options.most_blocks = 3;
  return options;
}

void Step(DeviceRank& rank, uint32_t layer, const Own& own, How how, bool zero_copy,
          const Kind& kind, const LayerRoutes& routes) {
  DeviceBuffer& buffer = rank.buffer();
  device::Queue& queue = rank.queue();
  const DeviceRows rows = rank.Put(own);
  const auto sent = buffer.Send(layer, rows, queue);
  ASSERT_TRUE(sent.ok()) << sent.status().message();
  if (how == How::kWait) ASSERT_TRUE(queue.Wait().ok());
  const Status came = buffer.Receive(*sent, queue);
  ASSERT_TRUE(came.ok()) << came.message();
  const uint64_t outputs = zero_copy ? buffer.NextCombineBuffer(*sent) : rank.outputs();
  rank.Compute(routes, *sent, outputs);
  ASSERT_TRUE(buffer.SendBack(*sent, outputs, queue).ok());
  if (how == How::kWait) ASSERT_TRUE(queue.Wait().ok());
  rank.ClearY(own.count);
  ASSERT_TRUE(buffer.Finish(*sent, rank.y(), queue).ok());
  const auto report = buffer.ReportOf(*sent, queue);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_TRUE(report->whole()) << report->missing.size() << " of a rank's are missing";
  const std::vector<uint8_t> y = rank.Y(own.count);
  Own magnitudes = own;
  for (float& v : magnitudes.x) v = std::abs(v);
  const std::vector<double> expected = Serial(rank.format(), kGranules, own);
  const std::vector<double> sizes = Serial(rank.format(), kGranules, magnitudes);
  const std::vector<double> found = Doubles(rank.format(), y.data(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_LE(std::abs(found[i] - expected[i]), kind.bound * sizes[i])
        << kind.name << " number " << i << ": " << found[i] << " for " << expected[i];
  EXPECT_EQ(y[expected.size() * BytesOf(kind.sums)], 0x5a) << "nothing is written behind y";
}

class DeviceGrid : public ::testing::TestWithParam<std::tuple<size_t, testing::Where, uint32_t>> {};

TEST_P(DeviceGrid, MatchesSerialSumForAnyLayout) {
  const auto [number, where, hidden] = GetParam();
  const Kind& kind = kKinds[number];
  const uint32_t ranks = 3, experts = 7;  // not a multiple of the ranks
  std::mt19937 draw(static_cast<uint32_t>(number) + 17);
  DeviceWorld world(where, ranks, OptionsOf(kind, experts, hidden, ranks));
  uint64_t epoch = 0;
  for (const How how : {How::kWait, How::kHook}) {
    for (const bool zero_copy : {false, true}) {
      Layout layout = Drawn(ranks, experts, draw);
      world.Enter(++epoch, layout);
      std::vector<std::vector<Own>> own(ranks);
      std::vector<std::shared_ptr<const Routes>> routes;
      for (uint32_t r = 0; r < ranks; ++r) {
        const Format& format = world[r].format();
        routes.push_back(RoutesOf(layout, r));
        own[r].push_back(DrawnRows(format, draw() % 20, draw));
        own[r].push_back(DrawnRows(format, r == 1 ? 0 : 64, draw));
        own[r].push_back(DrawnRows(format, 33, draw, 5));  // all to one expert
      }
      OnEach(ranks, [&](uint32_t r) {
        for (size_t i = 0; i < own[r].size(); ++i)
          Step(world[r], i % 2, own[r][i], how, zero_copy, kind, routes[r]->Layer(i % 2));
      });
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
  for (uint32_t r = 0; r < ranks; ++r)
    EXPECT_EQ(world[0].buffer().path(r), r == 0                      ? "here"
                                         : testing::LibraryOf(where) ? testing::LibraryOf(where)
                                                                     : "peer memory");
}

// 131: nothing is aligned; 256: everything is.
INSTANTIATE_TEST_SUITE_P(
    Dispatch, DeviceGrid,
    ::testing::Combine(::testing::Range(size_t{0}, std::size(kKinds)),
#ifdef TANGRAM_FAKE_CUDA
                       ::testing::Values(testing::Where::kHost, testing::Where::kCuda,
                                         testing::Where::kNccl, testing::Where::kUcx),
#else
                       ::testing::Values(testing::Where::kHost, testing::Where::kUcx),
#endif
                       ::testing::Values(131, 256)),
    [](const auto& info) {
      return std::string(kKinds[std::get<0>(info.param)].name) + NameOf(std::get<1>(info.param)) +
             std::to_string(std::get<2>(info.param));
    });

}  // namespace
}  // namespace tangram::dispatch
