// How well the kernels that move rows coalesce, counted for rows of DeepSeek-V3's size.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "agent/dispatch/gpu/testing/device_world.h"
#include "agent/dispatch/testing/grid.h"
#include "kernels/kernels.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr double kGoal = 0.9;  // share of transferred sectors that are full, as in kernels/

// Runs kernels like the host's queue, and counts the traffic that a GPU would have.
class CountingQueue final : public device::Queue {
 public:
  Status Launch(std::string_view name, kernels::Launch grid, const void* parameters) override {
    const kernels::Traffics traffics =
        kernels::Find(name)->count(grid.blocks, grid.threads, parameters);
    Add(traffics.loads, &seen_[std::string(name)].loads);
    Add(traffics.stores, &seen_[std::string(name)].stores);
    return OkStatus();
  }
  Status Copy(uint64_t to, uint64_t from, uint64_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return OkStatus();
  }
  Result<bool> Done() override { return true; }
  Status Wait() override { return OkStatus(); }
  const kernels::Traffics& of(const std::string& kernel) { return seen_[kernel]; }

 private:
  static void Add(const kernels::Traffic& from, kernels::Traffic* to) {
    to->requests += from.requests;
    to->bytes += from.bytes;
    to->sectors += from.sectors;
    to->full += from.full;
  }
  std::map<std::string, kernels::Traffics> seen_;
};

class DeviceSectors : public ::testing::TestWithParam<size_t> {};

TEST_P(DeviceSectors, AreMostlyFullWhenRowsMove) {
  const Kind& kind = kKinds[GetParam()];
  constexpr uint32_t kRanks = 2, kExperts = 8, kHidden = 7168, kTokens = 16;
  DeviceOptions options{.format = FormatOf(kind, kExperts, kHidden, 4)};
  options.most_ranks = kRanks;
  options.most_locals = kExperts;
  options.most_blocks = 8;
  DeviceWorld world(testing::Where::kHost, kRanks, options);
  Layout layout(kRanks, kExperts);
  std::vector<Placed> experts;
  for (uint32_t e = 0; e < kExperts; ++e) experts.push_back({{{e % kRanks, 0, kGranules}}});
  layout.AddLayer(experts);
  world.Enter(1, layout);
  std::mt19937 draw(1);
  CountingQueue queue;
  std::vector<Handle> handles;
  for (uint32_t r = 0; r < kRanks; ++r)
    handles.push_back(world[r]
                          .buffer()
                          .Send(0, world[r].Put(DrawnRows(options.format, kTokens, draw)), queue)
                          .value());
  for (uint32_t r = 0; r < kRanks; ++r)
    ASSERT_TRUE(world[r].buffer().Receive(handles[r], queue).ok());
  for (uint32_t r = 0; r < kRanks; ++r) {
    DeviceBuffer& buffer = world[r].buffer();
    // The experts' outputs do not matter.
    ASSERT_TRUE(buffer.SendBack(handles[r], buffer.NextCombineBuffer(handles[r]), queue).ok());
  }
  for (uint32_t r = 0; r < kRanks; ++r)
    ASSERT_TRUE(world[r].buffer().Finish(handles[r], world[r].y(), queue).ok());
  for (const char* const kernel :
       {"dispatch_send", "dispatch_pack", "combine_send", "combine_reduce"}) {
    const kernels::Traffics& of = queue.of(kernel);
    EXPECT_GE(of.loads.full_share(), kGoal) << kind.name << ": loads of " << kernel;
    EXPECT_GE(of.stores.full_share(), kGoal) << kind.name << ": stores of " << kernel;
    EXPECT_GT(of.stores.bytes, kTokens * kHidden);
    RecordProperty(std::string(kernel) + "_loads", std::to_string(of.loads.full_share()));
    RecordProperty(std::string(kernel) + "_stores", std::to_string(of.stores.full_share()));
  }
  // With FP8, each of the eight threads of a block reads all of it; the nearest cache serves that.
  const kernels::Traffics& sent = queue.of("dispatch_send");
  if (kind.wire == Element::kFp8)
    EXPECT_LE(static_cast<double>(sent.loads.sectors),
              8.1 * static_cast<double>(sent.stores.bytes) * BytesOf(kind.x) / 32);
}

INSTANTIATE_TEST_SUITE_P(Dispatch, DeviceSectors, ::testing::Range(size_t{0}, std::size(kKinds)),
                         [](const auto& info) { return std::string(kKinds[info.param].name); });

}  // namespace
}  // namespace tangram::dispatch
