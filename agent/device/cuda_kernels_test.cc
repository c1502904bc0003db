// Hashes by the kernels of kernels/, over the recording driver, which runs their source.
#include <algorithm>

#include "agent/device/runs.h"
#include "agent/device/testing/cuda_bytes.h"

namespace tangram::device {
namespace {

using testing::FakeCuda;

class CudaKernelsTest : public testing::CudaBytes {};

TEST_F(CudaKernelsTest, HashMatchesHostForAnyLengthAndAddress) {
  std::mt19937_64 random(11);
  std::vector<uint64_t> came(400);
  std::vector<HashOp> ops;
  std::vector<uint64_t> wanted;
  for (uint64_t& hash : came) {
    const uint64_t bytes = random() % (random() % 8 == 0 ? 200'000 : 600);
    const uint64_t offset = random() % (bytes_.size() - bytes);
    ops.push_back({At(offset, bytes), &hash});
    wanted.push_back(HashHere(offset, bytes));
  }
  ASSERT_TRUE(device_->Hash(ops).Wait().ok());
  EXPECT_EQ(came, wanted);
}

// A list is sent there and results return; the hashed bytes stay on the device.
TEST_F(CudaKernelsTest, HashesWithoutCopyingBytesToHost) {
  std::vector<uint64_t> came(kUnits);
  std::vector<HashOp> ops;
  for (uint64_t u = 0; u < kUnits; ++u) ops.push_back({At(u * kUnit, kUnit), &came[u]});
  const uint64_t copies = FakeCuda::Calls("cuMemcpyAsync");
  ASSERT_TRUE(device_->Hash(ops).Wait().ok());
  EXPECT_EQ(FakeCuda::Calls("cuMemcpyAsync"), copies + 2);
  EXPECT_EQ(FakeCuda::Calls("cuLaunchKernel"), 2U);
  for (uint64_t u = 0; u < kUnits; ++u) EXPECT_EQ(came[u], HashHere(u * kUnit, kUnit));
}

TEST_F(CudaKernelsTest, WritesHashOnlyOnceEventIsDone) {
  std::vector<std::byte> other(kUnit, std::byte{3});
  uint64_t copied = 1, hashed = 2;
  const CopyOp copy{At(0, kUnit), Memory::Own(other), &copied};
  const Event one = device_->Copy({&copy, 1});
  const HashOp hash{At(kUnit - 5, 10), &hashed};  // some of these bytes are written by the copy
  const Event two = device_->Hash({&hash, 1});
  EXPECT_GT(FakeCuda::Waiting(), 0U);
  EXPECT_FALSE(two.Done());
  EXPECT_EQ(copied, 1U);
  EXPECT_EQ(hashed, 2U);
  while (!two.Done()) {
  }
  std::copy(other.begin(), other.end(), bytes_.begin());
  EXPECT_EQ(hashed, HashHere(kUnit - 5, 10));
  EXPECT_EQ(copied, 1U) << "nobody looked at its event";
  EXPECT_TRUE(one.Wait().ok());
  EXPECT_EQ(copied, HashOf(other));
}

// They share lists, results and scratch, which grow for the second.
TEST_F(CudaKernelsTest, RunsConsecutiveBatchesWithoutWaiting) {
  std::vector<uint64_t> came(3 * 700);
  std::vector<Event> events;
  uint64_t next = 0;
  for (const uint64_t count : {1U, 700U, 3U}) {
    std::vector<HashOp> ops;
    for (uint64_t i = 0; i < count; ++i, ++next) {
      ops.push_back({At(next * 97, count == 700 ? 20'000 : kUnit), &came[next]});
    }
    events.push_back(device_->Hash(ops));
  }
  std::ranges::reverse(events);
  for (const Event& event : events) EXPECT_TRUE(event.Wait().ok());
  for (uint64_t i = 0; i < next; ++i) {
    EXPECT_EQ(came[i], HashHere(i * 97, i == 0 || i > 700 ? kUnit : 20'000)) << i;
  }
}

// Two planes, as gate and up with down: units are interleaved, in lines of any length.
TEST_F(CudaKernelsTest, CopiesAndHashesSlabUnitsWithOneLaunchPerStage) {
  for (const uint64_t line : {192U, 40U, 7U}) {
    const Shape four{{{30, 2 * line}, {50, line}}, 4}, two{four.planes, 2};
    const uint64_t unit = four.unit_bytes();
    Memory from = At(3 * line, 0), to = At(5 * kUnit, 0);
    from.shape = &four;
    to.shape = &two;
    const auto units = [&](const Memory& slab, uint64_t first, uint64_t count) {
      Memory out = slab;
      out.bytes = slab.shape->units * unit;
      return out.Part(first * unit, count * unit);
    };
    // The host's result.
    std::vector<std::byte> wanted(2 * unit);
    Memory here = Memory::Own(std::span(bytes_).subspan(3 * line, 4 * unit));
    here.shape = &four;
    Gather(here.Part(unit, 2 * unit), wanted);

    std::vector<uint64_t> hashes(3);
    const std::vector<CopyOp> copies{{units(to, 0, 1), units(from, 1, 1), &hashes[0]},
                                     {units(to, 1, 1), units(from, 2, 1), &hashes[1]}};
    const uint64_t launches = FakeCuda::Calls("cuLaunchKernel");
    ASSERT_TRUE(device_->Copy(copies).Wait().ok());
    EXPECT_EQ(FakeCuda::Calls("cuLaunchKernel"), launches + 4)
        << "all strips; what is hashed brought together; sums and chain";
    const HashOp both{units(to, 0, 2), &hashes[2]};
    ASSERT_TRUE(device_->Hash({&both, 1}).Wait().ok());
    EXPECT_EQ(hashes[0], HashOf(std::span(wanted).first(unit)));
    EXPECT_EQ(hashes[1], HashOf(std::span(wanted).subspan(unit)));
    EXPECT_EQ(hashes[2], HashOf(wanted));
    std::vector<std::byte> came(2 * unit);
    const CopyOp back{Memory::Own(came), both.of};
    ASSERT_TRUE(device_->Copy({&back, 1}).Wait().ok());
    EXPECT_TRUE(came == wanted) << line;
  }
}

TEST_F(CudaKernelsTest, WritesNoHashWhenEventIsDiscarded) {
  auto hash = std::make_unique<uint64_t>(5);
  const HashOp op{At(0, kUnit), hash.get()};
  (void)device_->Hash({&op, 1});
  EXPECT_EQ(*hash, 5U);
  hash.reset();         // without its event no hash may be written
  mapped_ = Mapping();  // waits
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
}

TEST_F(CudaKernelsTest, FinishesHashBeforeUnmap) {
  uint64_t hash = 0;
  const HashOp op{At(0, kUnit), &hash};
  const Event event = device_->Hash({&op, 1});
  mapped_ = Mapping();
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
  EXPECT_EQ(hash, 0U) << "who unmaps is not who asked";
  EXPECT_TRUE(event.Wait().ok());
  EXPECT_EQ(hash, HashHere(0, kUnit));
}

TEST_F(CudaKernelsTest, FailsBatchWhenDriverRejectsLaunch) {
  uint64_t hash = 5;
  const HashOp op{At(0, kUnit), &hash};
  for (const uint64_t skip : {0U, 1U}) {
    FakeCuda::Fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, skip);
    const Status failed = device_->Hash({&op, 1}).Wait();
    EXPECT_EQ(failed.code(), Code::kInternal);
    EXPECT_NE(failed.message().find(skip == 0 ? "launching hash_sums" : "launching hash_chain"),
              std::string::npos)
        << failed.message();
    EXPECT_EQ(hash, 5U);
  }
  EXPECT_TRUE(device_->Hash({&op, 1}).Wait().ok());
  EXPECT_EQ(hash, HashHere(0, kUnit));
}

}  // namespace
}  // namespace tangram::device
