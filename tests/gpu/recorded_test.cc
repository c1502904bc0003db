// Parts of the check over the recording driver, in this process: errors are noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "agent/device/testing/fake_cuda.h"
#include "kernels/dispatch.h"
#include "tests/gpu/acts.h"
#include "tests/gpu/timing.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

using device::testing::FakeCuda;

constexpr const char* kDriver = TANGRAM_FAKE_CUDA;

class RecordedTest : public ::testing::Test {
 protected:
  void SetUp() override { FakeCuda::Become({}); }
  void TearDown() override {
    EXPECT_EQ(FakeCuda::Leaks(), "");
    EXPECT_EQ(FakeCuda::Complaint(), "");
  }
};

template <typename Parameters, typename Change>
void With(std::vector<std::byte>* bytes, Change&& change) {
  Parameters parameters;
  ASSERT_EQ(bytes->size(), sizeof parameters);
  std::memcpy(static_cast<void*>(&parameters), bytes->data(), sizeof parameters);
  change(parameters);
  std::memcpy(bytes->data(), &parameters, sizeof parameters);
}

// Decrements a number in a kernel's parameters.
template <typename Parameters, typename Number>
void Lessen(Number Parameters::*member, std::vector<std::byte>* bytes) {
  With<Parameters>(bytes, [&](Parameters& parameters) { --(parameters.*member); });
}

void Spoil(Image::Step* step) {
  using namespace kernels;
  const std::string_view kernel = step->kernel;
  auto* const bytes = &step->parameters;
  if (kernel == "hash_sums" || kernel == "copy_hash") Lessen(&HashParameters::units, bytes);
  if (kernel == "hash_chain") Lessen(&HashParameters::count, bytes);
  if (kernel == "copy_strips") Lessen(&CopyStripsParameters::units, bytes);
  if (kernel == "kv_by_head") Lessen(&KvByHeadParameters::units, bytes);
  if (kernel == "kv_latent") Lessen(&KvLatentParameters::units, bytes);
  if (kernel == "gather_blocks") Lessen(&GatherBlocksParameters::count, bytes);
  if (kernel == "load_histogram") Lessen(&LoadHistogramParameters::count, bytes);
  if (kernel == "partial_sums") Lessen(&PartialSumsParameters::elements, bytes);
  if (kernel == "fill_bf16") Lessen(&FillParameters::rows, bytes);
  if (kernel == "embed") Lessen(&EmbedParameters::rows, bytes);
  if (kernel == "rms_norm") Lessen(&RmsNormParameters::rows, bytes);
  if (kernel == "matvec") Lessen(&MatvecParameters::outputs, bytes);
  if (kernel == "rope") Lessen(&RopeParameters::rows, bytes);
  if (kernel == "add_parts") Lessen(&AddPartsParameters::rows, bytes);
  if (kernel == "pick_token") Lessen(&PickParameters::rows, bytes);
  if (kernel == "kv_write") Lessen(&KvWriteParameters::rows, bytes);
  if (kernel == "attend_scores" || kernel == "attend_mix") Lessen(&AttendParameters::rows, bytes);
  if (kernel == "route") Lessen(&RouteParameters::rows, bytes);
  if (kernel == "expert_up" || kernel == "expert_down") Lessen(&ExpertParameters::rows, bytes);
  if (kernel == "dispatch_flag") {
    // Each kernel passes the number of rows to the next one.
    With<DispatchParameters>(bytes, [](DispatchParameters& p) { p.sent += 4; });
  } else if (kernel == "dispatch_wait") {
    // A larger number is rejected.
    With<DispatchParameters>(bytes, [](DispatchParameters& p) { p.most_tokens = 1; });
  } else if (kernel == "dispatch_offsets") {
    // Room for one row.
    With<DispatchParameters>(bytes, [](DispatchParameters& p) { p.capacity = 1; });
  } else if (kernel == "combine_reduce") {
    Lessen(&DispatchParameters::tokens, bytes);
  } else if (kernel == "dispatch_pack") {
    Lessen(&DispatchParameters::hidden, bytes);
  } else if (kernel.starts_with("dispatch_") || kernel.starts_with("combine_")) {
    Lessen(&DispatchParameters::top_k, bytes);
  }
}

TEST_F(RecordedTest, DetectsEveryKernelDifferingFromTwin) {
  const Gpu gpu(kDriver);
  const Kernels kernels(gpu);
  std::map<std::string, int> noticed, cases;
  for (const TwinCase& twin : TwinCases(100, 1)) {
    EXPECT_EQ(Difference(gpu, kernels, twin), std::nullopt);
    EXPECT_NE(Difference(gpu, kernels, twin, [](Image* image) { image->steps().clear(); }),
              std::nullopt)
        << twin.kernel << ": one that does nothing";
    Image sized(0, twin.data_bytes);
    twin.build(&sized);
    for (size_t i = 0; i < sized.steps().size(); ++i) {
      const std::string kernel(sized.steps()[i].kernel);
      ++cases[kernel];
      const auto difference =
          Difference(gpu, kernels, twin, [&](Image* image) { Spoil(&image->steps()[i]); });
      if (!difference) continue;
      ++noticed[kernel];
      EXPECT_NE(difference->find("differs from its twin in "), std::string::npos) << *difference;
    }
  }
  for (const kernels::Kernel& kernel : kernels::All()) {
    const std::string name(kernel.name);
    EXPECT_GT(cases[name], 1) << name;
    EXPECT_GT(noticed[name], 0) << name;
  }
}

TEST_F(RecordedTest, DetectsDifferentByteOnDevice) {
  const Gpu gpu(kDriver);
  const Kernels kernels(gpu);
  std::vector<TwinCase> counts;
  AddNumberCases(1, 1, &counts);
  ASSERT_EQ(counts[0].kernel, "load_histogram");
  const auto difference = Difference(gpu, kernels, counts[0], [](Image* image) {
    image->data().back() ^= std::byte{1};  // the highest byte of the last count
  });
  ASSERT_TRUE(difference.has_value());
  EXPECT_NE(difference->find("in 1 of "), std::string::npos) << *difference;
}

TEST_F(RecordedTest, StopwatchExcludesTimeToFillStreams) {
  const Gpu gpu(kDriver);
  const Buffer buffer(gpu, 3 << 20);
  Stopwatch watch(gpu, 3);
  int filled = 0;
  const double seconds = watch.Seconds(4, [&] {
    ++filled;
    // In order: the streams synchronize in between.
    Copy(gpu, buffer.address() + 4096, buffer.address(), 4096, watch.stream(0));
    watch.Meet();
    Copy(gpu, buffer.address() + 8192, buffer.address() + 4096, 4096, watch.stream(2));
    EXPECT_GT(FakeCuda::Waiting(), 2u) << "nothing runs before the gate opens";
  });
  EXPECT_EQ(filled, 5) << "the first is not counted";
  EXPECT_NEAR(seconds, 1e-3, 1e-9) << "by the driver's clock";
  EXPECT_EQ(watch.hurried(), 0);
  EXPECT_THROW(watch.Seconds(1, [&] { Copy(gpu, 0, 0, 0, nullptr); }), Failed);
  (void)FakeCuda::Complaint();
}

TEST(Quantile, IsByRank) {
  EXPECT_EQ(Quantile({5}, 0.5), 5);
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  std::vector<double> many(101);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(100 - i);
  EXPECT_EQ(Quantile(many, 0.99), 99);
  EXPECT_EQ(Quantile(many, 1), 100);
}

std::vector<Json> Told(void (*run)(const Task&)) {
  std::vector<Json> out;
  Recorder recorder("act", [&](const Json& record) { out.push_back(record); });
  run({kDriver, true, &recorder});
  return out;
}

uint64_t Count(const std::vector<Json>& records, const char* kind) {
  return static_cast<uint64_t>(std::count_if(
      records.begin(), records.end(), [&](const Json& record) { return record["kind"] == kind; }));
}

// Acts that open the driver only in this process; bundle_test.py runs all acts.
TEST_F(RecordedTest, ActsPassAndReleaseAllResources) {
  for (const auto run :
       {RunMachine, RunTwins, RunRemap, RunReshard, RunKv, RunCopies, RunGraphs, RunDispatch}) {
    const auto records = Told(run);
    EXPECT_EQ(Count(records, "wrong"), 0u);
    EXPECT_EQ(Count(records, "not_run"), 0u);
    EXPECT_GE(records.size(), 2u);
    EXPECT_EQ(FakeCuda::Leaks(), "");
  }
}

TEST_F(RecordedTest, CountsOtherDevices) {
  FakeCuda::Become({.devices = 2});
  const auto records = Told(RunMachine);
  const auto peers = std::find_if(records.begin(), records.end(),
                                  [](const Json& record) { return record["name"] == "peers"; });
  ASSERT_NE(peers, records.end());
  EXPECT_EQ((*peers)["text"], "0 of 1 other devices, 0 of them over NVLink (by what they can)");
}

TEST_F(RecordedTest, TreatsMissingGraphsAsLackingCapability) {
  FakeCuda::Become({.missing = "cuGraphLaunch"});
  EXPECT_THROW(Told(RunGraphs), Lacks);
}

TEST_F(RecordedTest, RunsRestWhenDriverHasNoBatches) {
  FakeCuda::Become({.missing = "cuMemcpyBatchAsync"});
  const auto records = Told(RunCopies);
  EXPECT_EQ(Count(records, "not_run"), 5u) << "one a shape";
  EXPECT_GT(Count(records, "figure"), 30u);
}

TEST_F(RecordedTest, DescribesUnusableDevice) {
  FakeCuda::Become({.name = "NVIDIA H200 MIG 1g.18gb"});
  std::vector<Json> out;
  Recorder recorder("machine", [&](const Json& record) { out.push_back(record); });
  EXPECT_THROW(RunMachine({kDriver, true, &recorder}), Lacks);
  const auto slice = std::find_if(out.begin(), out.end(),
                                  [](const Json& record) { return record["name"] == "MIG slice"; });
  ASSERT_NE(slice, out.end());
  EXPECT_EQ((*slice)["text"], "yes (by its name)");
}

}  // namespace
}  // namespace tangram::gpu
