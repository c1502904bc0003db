// Ranks that die, are stopped, are reported as lost, or send invalid data, in device memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "agent/base/testing/hang.h"
#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"
#include "kernels/dispatch_layout.h"

namespace tangram::dispatch {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr uint32_t kTopK = 3, kHidden = 64;
// For tests without a silent rank: too long for a busy machine to reach.
constexpr auto kNever = std::chrono::duration_cast<milliseconds>(tangram::testing::kHang);

DeviceOptions OptionsOf(const Kind& kind, uint32_t experts, uint32_t ranks, milliseconds timeout) {
  DeviceOptions options{.format = FormatOf(kind, experts, kHidden, kTopK)};
  options.most_ranks = ranks;
  options.most_locals = 3 * experts;
  options.moe_layers = 2;
  options.most_blocks = 2;
  options.timeout = timeout;
  return options;
}

// Expert e only on rank e % ranks, except that the last two have a replica on rank 0.
Layout Spread(uint32_t ranks, uint32_t experts, bool copies = true) {
  Layout layout(ranks, experts);
  std::vector<Placed> of;
  for (uint32_t e = 0; e < experts; ++e) {
    of.push_back({{{e % ranks, 0, kGranules}}});
    if (copies && e + 2 >= experts && e % ranks != 0) of.back().push_back({{0, 0, kGranules}});
  }
  layout.AddLayer(std::move(of));
  return layout;
}

// A pair with its report, for the caller to check.
struct Outcome {
  Report report;
  std::vector<double> y;
};
Outcome Pair(DeviceRank& rank, const LayerRoutes& routes, const Own& own) {
  DeviceBuffer& buffer = rank.buffer();
  device::Queue& queue = rank.queue();
  const auto handle = buffer.Send(0, rank.Put(own), queue);
  EXPECT_TRUE(handle.ok()) << handle.status().message();
  EXPECT_TRUE(buffer.Receive(*handle, queue).ok());
  rank.Compute(routes, *handle, rank.outputs());
  EXPECT_TRUE(buffer.SendBack(*handle, rank.outputs(), queue).ok());
  EXPECT_TRUE(buffer.Finish(*handle, rank.y(), queue).ok());
  auto report = buffer.ReportOf(*handle, queue);
  EXPECT_TRUE(report.ok()) << report.status().message();
  Outcome out{std::move(report).value(), {}};
  const auto y = rank.Y(own.count);
  out.y = Doubles(rank.format(), y.data(), own.x.size());
  return out;
}

// The parameters of the inboxes' layout, for rows and sums of F32.
kernels::DispatchParameters Shape() {
  kernels::DispatchParameters shape;
  shape.hidden = kHidden;
  shape.top_k = kTopK;
  shape.most_tokens = 64;
  shape.wire = shape.sums = kernels::kRowF32;
  return shape;
}

// For rank 0 in Spread's layout, first alone: the rows that it computes for itself.
uint32_t OwnRowsHere(const Own& own, uint32_t ranks) {
  uint32_t rows = 0;
  for (const int32_t e : own.experts) rows += static_cast<uint32_t>(e) % ranks == 0 ? 1 : 0;
  return rows;
}

enum class Fate { kMasked, kDiesBeforeDispatch, kDiesBeforeCombine };

// A rank that dies here closes nothing, so the timeout ends the wait for it: those cases have
// RealTime in their names.
class DeviceFailures : public ::testing::TestWithParam<std::tuple<size_t, testing::Where, Fate>> {};

// Rank 2 is lost. The others continue, report exactly the missing contributions, and have the rest
// right. Then a world without it is complete again.
TEST_P(DeviceFailures, ReportsMissingContributionsAndComputesRest) {
  const auto [number, where, what] = GetParam();
  const Fate fate = what;
  const Kind& kind = kKinds[number];
  const uint32_t ranks = 3, experts = 7, lost = 2;
  const milliseconds timeout = fate == Fate::kMasked ? kNever : milliseconds(1000);
  DeviceWorld world(where, ranks, OptionsOf(kind, experts, ranks, timeout));
  Layout layout = Spread(ranks, experts);
  world.Enter(1, layout);
  std::mt19937 draw(static_cast<uint32_t>(number) + 3);
  std::vector<std::vector<Own>> own(ranks);
  std::vector<std::shared_ptr<const Routes>> routes;
  for (uint32_t r = 0; r < ranks; ++r) {
    routes.push_back(RoutesOf(layout, r));
    for (int i = 0; i < 3; ++i) own[r].push_back(DrawnRows(world[r].format(), 20, draw));
  }
  std::atomic<uint32_t> through{0};
  OnEach(ranks, [&](uint32_t r) {
    DeviceRank& rank = world[r];
    const auto judge = [&](const Own& of, bool whole) {
      const Outcome outcome = Pair(rank, routes[r]->Layer(0), of);
      EXPECT_EQ(outcome.report.whole(), whole) << "rank " << r;
      for (const Contribution& lacks : outcome.report.missing)
        EXPECT_EQ(static_cast<uint32_t>(lacks.expert) % ranks, lost);
      Own magnitudes = of;
      for (float& v : magnitudes.x) v = std::abs(v);
      const auto expected = Serial(rank.format(), kGranules, of, outcome.report.missing);
      const auto sizes = Serial(rank.format(), kGranules, magnitudes);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LE(std::abs(outcome.y[i] - expected[i]), kind.bound * sizes[i]) << "number " << i;
      return outcome.report;
    };
    judge(own[r][0], true);
    if (fate == Fate::kMasked) {
      if (r == lost) return;
      ASSERT_TRUE(rank.buffer().Mask(lost, "somebody saw it go", rank.queue()).ok());
    }
    if (r == lost) {
      if (fate == Fate::kDiesBeforeDispatch) return;
      // It sends its rows, and receives, but sends no sums back.
      const auto handle = rank.buffer().Send(0, rank.Put(own[r][1]), rank.queue());
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(rank.queue().Wait().ok());
      while (through.load() < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const Report report = judge(own[r][1], false);
    ++through;
    EXPECT_EQ(report.masked, std::vector<uint32_t>{lost});
    EXPECT_EQ(rank.buffer().active_ranks()[lost], 0);
    const std::string cause = rank.buffer().cause(lost);
    EXPECT_FALSE(cause.empty());
    // It stays masked: no rank waits for it again, and replicas on other ranks are used.
    const auto begun = std::chrono::steady_clock::now();
    const Report next = judge(own[r][2], false);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, timeout * 7 / 8);
    EXPECT_EQ(rank.buffer().cause(lost), cause);
    for (const Contribution& lacks : next.missing)
      EXPECT_LT(lacks.expert, static_cast<int32_t>(experts) - 2) << "those have copies";
  });
  if (HasFailure()) return;
  // The survivors' world, in reverse order.
  Layout without = Spread(2, experts);
  world.Enter(2, {1, 0}, without);
  EXPECT_GT(world[0].buffer().quarantined(), 0u) << "the lost one may still write";
  for (uint32_t r = 0; r < 2; ++r) routes[r] = RoutesOf(without, r);
  OnEach(2, [&](uint32_t r) {
    DeviceRank& rank = world[1 - r];
    const Outcome outcome = Pair(rank, routes[r]->Layer(0), own[1 - r][1]);
    EXPECT_TRUE(outcome.report.whole());
    if (kind.bound == 0) EXPECT_EQ(outcome.y, Serial(rank.format(), kGranules, own[1 - r][1]));
  });
  for (const uint32_t r : {0, 1}) {
    world[r].buffer().Ended(world.ids()[lost]);
    EXPECT_EQ(world[r].buffer().quarantined(), 0u);
  }
}

const char* NameOf(Fate fate) {
  return fate == Fate::kMasked               ? "Masked"
         : fate == Fate::kDiesBeforeDispatch ? "DiesBeforeDispatch"
                                             : "DiesBeforeCombine";
}

constexpr testing::Where kWhere[] = {
    testing::Where::kHost,
    testing::Where::kUcx,
#ifdef TANGRAM_FAKE_CUDA
    testing::Where::kCuda,
    testing::Where::kNccl,
#endif
};
std::string NameOfCase(const ::testing::TestParamInfo<DeviceFailures::ParamType>& info) {
  return std::string(kKinds[std::get<0>(info.param)].name) +
         testing::NameOf(std::get<1>(info.param)) + NameOf(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Dispatch, DeviceFailures,
                         ::testing::Combine(::testing::Values(0, 1, 2, 4),
                                            ::testing::ValuesIn(kWhere),
                                            ::testing::Values(Fate::kMasked)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(
    RealTime, DeviceFailures,
    ::testing::Combine(::testing::Values(0, 1, 2, 4), ::testing::ValuesIn(kWhere),
                       ::testing::Values(Fate::kDiesBeforeDispatch, Fate::kDiesBeforeCombine)),
    NameOfCase);

// Rank 2 sends its rows to rank 0, but not to rank 1, which waits for it. Rank 0 waits for rank 1
// meanwhile, and must not mask it as silent.
TEST(DeviceWaitsRealTime, DoesNotMaskPeerWaitingForUnresponsiveRank) {
  const uint32_t ranks = 3, experts = 6;
  DeviceWorld world(testing::Where::kHost, ranks,
                    OptionsOf(kKinds[0], experts, ranks, milliseconds(300)));
  Layout layout = Spread(ranks, experts);
  world.Enter(1, layout);
  // Rank 2's data for rank 1 is lost.
  auto nowhere = DeviceMemory::Make(world[2].device(), kernels::InboxBytes(Shape()));
  ASSERT_TRUE(nowhere.ok()) << nowhere.status().message();
  ASSERT_TRUE(world[2].buffer().Attach(world.ids()[1], nowhere->at()).ok());
  world.Enter(2, layout);
  std::mt19937 draw(4);
  std::vector<Own> own;
  std::vector<std::shared_ptr<const Routes>> routes;
  for (uint32_t r = 0; r < ranks; ++r) {
    own.push_back(DrawnRows(world[r].format(), 20, draw));
    routes.push_back(RoutesOf(layout, r));
  }
  OnEach(ranks, [&](uint32_t r) {
    DeviceRank& rank = world[r];
    if (r == 2) {
      ASSERT_TRUE(rank.buffer().Send(0, rank.Put(own[r]), rank.queue()).ok());
      return;
    }
    const Outcome outcome = Pair(rank, routes[r]->Layer(0), own[r]);
    EXPECT_EQ(outcome.report.masked, std::vector<uint32_t>{2}) << "of rank " << r;
    EXPECT_EQ(rank.buffer().cause(2), "nothing came from it for 300 ms");
  });
}

// Data of a peer is used only where it is possible.
TEST(DeviceWaits, MasksPeerOrIgnoresRowsWhenDataIsImpossible) {
  const uint32_t ranks = 2, experts = 4;
  const DeviceOptions options = OptionsOf(kKinds[0], experts, ranks, kNever);
  DeviceWorld world(testing::Where::kHost, ranks, options);
  Layout layout = Spread(ranks, experts, false);
  DeviceRank& rank = world[0];
  const uint64_t inbox = rank.buffer().Grant(world.ids()[1], rank.queue()).value();
  const kernels::DispatchInbox at = kernels::InboxOf(Shape(), 0);
  std::mt19937 draw(4);
  const Own own = DrawnRows(options.format, 20, draw);
  const auto pair = [&](uint64_t epoch, uint32_t total, int32_t choice) {
    world.Enter(epoch, layout);
    for (uint32_t i = 0; i < 64 * kTopK; ++i)
      *reinterpret_cast<int32_t*>(inbox + at.choices + uint64_t{i} * 4) = choice;
    *reinterpret_cast<uint32_t*>(inbox + at.total) = total;
    for (const uint64_t flag : at.flags)
      kernels::DirectMemory().Publish<uint64_t>(inbox + flag, kernels::FlagOf(epoch, 0));
    const auto handle = rank.buffer().Send(0, rank.Put(own), rank.queue());
    EXPECT_TRUE(rank.buffer().Receive(*handle, rank.queue()).ok());
    const auto came = rank.Fetch(*handle);
    EXPECT_EQ(came->packed.rows, OwnRowsHere(own, ranks)) << "only its own";
    rank.Compute(RoutesOf(layout, 0)->Layer(0), *handle, rank.outputs());
    EXPECT_TRUE(rank.buffer().SendBack(*handle, rank.outputs(), rank.queue()).ok());
    EXPECT_TRUE(rank.buffer().Finish(*handle, rank.y(), rank.queue()).ok());
    return rank.buffer().ReportOf(*handle, rank.queue()).value();
  };
  uint64_t epoch = 0;
  // An invalid choice, or one that is not here.
  for (const int32_t choice : {-2, INT32_MIN, 1, 5, 1000, INT32_MAX}) {
    EXPECT_EQ(pair(++epoch, 64, choice).masked.size(), 0u) << choice;
    // It receives the report that its rows are in no sum.
    const uint64_t there = world[1].buffer().Grant(world.ids()[0], world[1].queue()).value();
    for (uint32_t i = 0; i < 64; ++i)
      EXPECT_EQ(*reinterpret_cast<uint32_t*>(there + at.lacking + uint64_t{i} * 4), 7u);
  }
  for (const uint32_t total : {65u, UINT32_MAX}) {
    EXPECT_EQ(pair(++epoch, total, 0).masked, std::vector<uint32_t>{1});
    EXPECT_EQ(rank.buffer().cause(1), "it says that it sent more rows than a dispatch may have");
  }
}

}  // namespace
}  // namespace tangram::dispatch
