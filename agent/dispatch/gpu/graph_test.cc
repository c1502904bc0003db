// Graphs, captured once, continue to work when members and placement change, and when a rank dies
// during a replay. Over the recording driver.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "agent/base/testing/hang.h"
#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr uint32_t kRanks = 3, kExperts = 6, kTopK = 2, kHidden = 64, kTokens = 40;

DeviceOptions Options(std::chrono::nanoseconds timeout) {
  DeviceOptions options{.format = FormatOf(kKinds[0], kExperts, kHidden, kTopK)};
  options.most_ranks = kRanks;
  options.most_locals = 2 * kExperts;
  options.moe_layers = 2;
  options.most_blocks = 3;
  options.timeout = timeout;
  return options;
}

// Two layers, experts on random ranks, some with replicas.
Layout Placement(uint32_t ranks, std::mt19937& draw) {
  Layout layout(ranks, kExperts);
  for (int l = 0; l < 2; ++l) {
    std::vector<Placed> experts;
    for (uint32_t e = 0; e < kExperts; ++e) {
      Placed& of = experts.emplace_back();
      for (uint32_t a = 0; a <= draw() % 2; ++a)
        of.push_back({{static_cast<uint32_t>(draw() % ranks), 0, kGranules}});
    }
    layout.AddLayer(std::move(experts));
  }
  return layout;
}

// The expected y if experts return their inputs.
std::vector<double> Expected(const Own& own, const std::vector<Contribution>& missing) {
  std::vector<double> y(own.x.size(), 0);
  for (uint32_t row = 0; row < own.count; ++row)
    for (uint32_t k = 0; k < kTopK; ++k) {
      const Contribution of{row, k, own.experts[row * kTopK + k]};
      if (std::ranges::find(missing, of) != missing.end()) continue;
      for (uint32_t h = 0; h < kHidden; ++h)
        y[row * kHidden + h] += own.weights[row * kTopK + k] * own.x[row * kHidden + h];
    }
  return y;
}

// Both layers of a step of one rank, captured. The experts return their inputs, so there is nothing
// between Receive and SendBack.
class Captured {
 public:
  Captured(DeviceWorld& world, DeviceRank& rank) : rank_(rank) {
    EXPECT_TRUE(rank.queue().Wait().ok());  // makes the context current for this thread
    EXPECT_EQ(cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    queue_ = world.platform().OpenQueue(stream_).value();
    std::mt19937 draw(1);
    DeviceRows rows[2];
    for (size_t l = 0; l < 2; ++l) rows[l] = rank.Put(DrawnRows(rank.format(), kTokens, draw), l);
    EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    DeviceBuffer& buffer = rank.buffer();
    for (uint32_t l = 0; l < 2; ++l) {
      handles_[l] = buffer.Send(l, rows[l], *queue_).value();
      EXPECT_TRUE(buffer.Receive(handles_[l], *queue_).ok());
      EXPECT_TRUE(buffer.SendBack(handles_[l], buffer.packed(handles_[l]).x, *queue_).ok());
      EXPECT_TRUE(buffer.Finish(handles_[l], rank.y(l), *queue_).ok());
    }
    EXPECT_EQ(cuStreamEndCapture(stream_, &graph_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&executable_, graph_, 0), CUDA_SUCCESS);
  }
  ~Captured() {
    EXPECT_EQ(cuGraphExecDestroy(executable_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
    queue_.reset();
    EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
  }

  // Runs one step with new rows; returns each layer's report.
  std::array<Report, 2> Replay(std::mt19937& draw) {
    std::array<Own, 2> own;
    for (size_t l = 0; l < 2; ++l) {
      own[l] = DrawnRows(rank_.format(), kTokens, draw);
      (void)rank_.Put(own[l], l);
    }
    EXPECT_EQ(cuGraphLaunch(executable_, stream_), CUDA_SUCCESS);
    EXPECT_TRUE(queue_->Wait().ok());
    std::array<Report, 2> out;
    for (size_t l = 0; l < 2; ++l) {
      auto report = rank_.buffer().ReportOf(handles_[l], *queue_);
      EXPECT_TRUE(report.ok()) << report.status().message();
      out[l] = std::move(report).value();
      EXPECT_EQ(Doubles(rank_.format(), rank_.Y(kTokens, l).data(), own[l].x.size()),
                Expected(own[l], out[l].missing))
          << "layer " << l;
    }
    return out;
  }

 private:
  DeviceRank& rank_;
  CUstream stream_ = nullptr;
  std::unique_ptr<device::Queue> queue_;
  std::array<Handle, 2> handles_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

// A world whose ranks have captured their steps.
class DeviceGraphs : public ::testing::Test {
 protected:
  explicit DeviceGraphs(std::chrono::nanoseconds timeout = tangram::testing::kHang)
      : world_(testing::Where::kCuda, kRanks, Options(timeout)) {
    Layout first = Placement(kRanks, draw_);
    world_.Enter(++epoch_, first);
    for (uint32_t r = 0; r < kRanks; ++r)
      graphs_.push_back(std::make_unique<Captured>(world_, world_[r]));
  }
  // Replays the graphs of the named ranks, in any order; no contribution may be missing.
  void Replay(const std::vector<uint32_t>& who, int times) {
    OnEach(who.size(), [&](uint32_t i) {
      std::mt19937 own(100 + who[i]);
      for (int turn = 0; turn < times; ++turn)
        for (const Report& report : graphs_[who[i]]->Replay(own))
          EXPECT_TRUE(report.whole()) << "of rank " << who[i];
    });
  }

  DeviceWorld world_;
  std::mt19937 draw_{3};
  uint64_t epoch_ = 0;
  std::vector<std::unique_ptr<Captured>> graphs_;
};

TEST_F(DeviceGraphs, ReplayUnchangedWhenMembersChange) {
  EXPECT_EQ(device::testing::FakeCuda::Waiting(), 0u) << "what is captured does not run";
  const uint64_t made = device::testing::FakeCuda::Calls("cuGraphInstantiateWithFlags");
  Replay({0, 1, 2}, 3);
  // Another placement; then rank 1 leaves; then it joins again, and ranks have other numbers.
  Layout second = Placement(3, draw_);
  world_.Enter(++epoch_, second);
  Replay({0, 1, 2}, 2);
  Layout third = Placement(2, draw_);
  world_.Enter(++epoch_, {2, 0}, third);
  Replay({0, 2}, 2);
  Layout fourth = Placement(3, draw_);
  world_.Enter(++epoch_, {1, 2, 0}, fourth);
  Replay({0, 1, 2}, 2);
  EXPECT_EQ(device::testing::FakeCuda::Calls("cuGraphInstantiateWithFlags"), made);
}

// A rank that is silent, so the timeout ends the wait for it.
class DeviceGraphsRealTime : public DeviceGraphs {
 protected:
  DeviceGraphsRealTime() : DeviceGraphs(std::chrono::milliseconds(500)) {}
};

TEST_F(DeviceGraphsRealTime, ContinueWhenRankDiesDuringReplay) {
  Replay({0, 1, 2}, 1);
  if (HasFailure()) return;
  // Rank 1 does not replay any more: in this replay it is masked, and all of its contributions are
  // missing. The next replay does not wait.
  OnEach(2, [&](uint32_t i) {
    const uint32_t r = 2 * i;
    std::mt19937 own(7 + r);
    size_t missing = 0;
    for (const Report& report : graphs_[r]->Replay(own)) {
      missing += report.missing.size();
      EXPECT_EQ(report.masked, std::vector<uint32_t>{1});
    }
    EXPECT_GT(missing, 0u);
    const auto begun = std::chrono::steady_clock::now();
    graphs_[r]->Replay(own);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(450));
  });
  // A world without it is complete, with the same graphs.
  Layout without = Placement(2, draw_);
  world_.Enter(++epoch_, {0, 2}, without);
  Replay({0, 2}, 2);
}

}  // namespace
}  // namespace tangram::dispatch
