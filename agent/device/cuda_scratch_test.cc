// Possible faults of the ring of scratch that kernels use.
#include "agent/device/cuda_scratch.h"

#include <thread>

#include "agent/device/testing/cuda_bytes.h"

namespace tangram::device {
namespace {

using testing::FakeCuda;

class CudaScratchTest : public testing::CudaBytes {};

TEST_F(CudaScratchTest, CopiesAndHashesInOnePass) {
  std::vector<uint64_t> hashes(20);
  std::vector<CopyOp> ops;
  uint64_t from = 3, to = 4 * kUnit + 1;
  std::vector<std::byte> want = bytes_;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint64_t bytes = i < 3 ? i : 1000 * i + i;
    ops.push_back({At(to, bytes), At(from, bytes), &hashes[i]});
    std::copy_n(bytes_.begin() + static_cast<int64_t>(from), bytes,
                want.begin() + static_cast<int64_t>(to));
    from += bytes + i % 5;
    to += bytes + i % 3;
  }
  const uint64_t copies = FakeCuda::Calls("cuMemcpyAsync");
  const uint64_t launches = FakeCuda::Calls("cuLaunchKernel");
  ASSERT_TRUE(device_->Copy(ops).Wait().ok());
  EXPECT_EQ(FakeCuda::Calls("cuMemcpyAsync") - copies, 2U) << "the list, and the hashes";
  EXPECT_EQ(FakeCuda::Calls("cuLaunchKernel") - launches, 2U) << "copies with sums, and the chain";
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint64_t at = ops[i].to.address - At(0, 0).address;
    EXPECT_EQ(hashes[i], HashOf(std::span(want).subspan(at, ops[i].to.bytes))) << i;
  }
  EXPECT_TRUE(Read(At(0, want.size())) == want) << "and nothing else changed";
}

TEST_F(CudaScratchTest, HashMatchesForCopiesToFromAndWithinHost) {
  std::vector<std::byte> in(70'001, std::byte{5}), out(in.size()), own(in.size());
  uint64_t hashes[3] = {};
  const std::vector<CopyOp> ops{{At(1, in.size()), Memory::Own(in), &hashes[0]},
                                {Memory::Own(out), At(kUnit + 9, out.size()), &hashes[1]},
                                {Memory::Own(own), Memory::Own(in), &hashes[2]}};
  ASSERT_TRUE(device_->Copy(ops).Wait().ok());
  EXPECT_EQ(hashes[0], HashOf(in));
  EXPECT_EQ(hashes[1], HashHere(kUnit + 9, out.size()));
  EXPECT_EQ(hashes[2], HashOf(in));
  EXPECT_TRUE(own == in);
}

// Each slot of the ring is used three times before a hash is requested. A slot that is reused too
// early would have another batch's list at its copy, or another batch's hashes.
TEST_F(CudaScratchTest, KeepsResultsSeparateWhenBatchesExceedRingSlots) {
  constexpr size_t kBatches = 3 * CudaScratch::kSlots;
  std::vector<uint64_t> hashes(kBatches);
  std::vector<Event> events;
  const uint64_t buffers = FakeCuda::Calls("cuMemAlloc");
  for (size_t i = 0; i < kBatches; ++i) {
    const HashOp op{At(i * 100'000, 100'000), &hashes[i]};
    events.push_back(device_->Hash({&op, 1}));
  }
  EXPECT_FALSE(events.back().Done());
  for (size_t i = kBatches; i-- > 0;) {
    EXPECT_EQ(hashes[i], 0U);
    ASSERT_TRUE(events[i].Wait().ok());
    EXPECT_EQ(hashes[i], HashHere(i * 100'000, 100'000)) << i;
  }
  EXPECT_EQ(FakeCuda::Calls("cuMemAlloc"), buffers) << "it was made at the start";
}

TEST_F(CudaScratchTest, KeepsHashesOfConcurrentThreadsSeparate) {
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint64_t> hashes(10);
      std::vector<Event> events;
      const auto at = [&](uint64_t i) { return (t * hashes.size() + i) * 50'000 + t; };
      for (uint64_t i = 0; i < hashes.size(); ++i) {
        const HashOp op{At(at(i), 40'000 + i), &hashes[i]};
        events.push_back(device_->Hash({&op, 1}));
      }
      for (uint64_t i = 0; i < hashes.size(); ++i) {
        while (i % 2 == 0 && !events[i].Done()) std::this_thread::yield();
        EXPECT_TRUE(events[i].Wait().ok());
        EXPECT_EQ(hashes[i], HashHere(at(i), 40'000 + i)) << t << " " << i;
      }
    });
  }
}

TEST_F(CudaScratchTest, SplitsBatchLargerThanSlot) {
  const Shape shape{{{256, 1024}, {1024, 256}}, 16};  // 512 KiB each, to be gathered
  Memory slab = At(0, 16 * shape.unit_bytes());
  slab.shape = &shape;
  const uint64_t unit = shape.unit_bytes();
  std::vector<uint64_t> hashes(20);
  std::vector<HashOp> ops;
  for (size_t i = 0; i < hashes.size(); ++i) {
    ops.push_back({slab.Part(i % 16 * unit, unit), &hashes[i]});
  }
  const uint64_t buffers = FakeCuda::Calls("cuMemAlloc");
  ASSERT_TRUE(device_->Hash(ops).Wait().ok());
  EXPECT_EQ(FakeCuda::Calls("cuMemAlloc"), buffers);
  for (size_t i = 0; i < hashes.size(); ++i) {
    EXPECT_EQ(hashes[i], HashOf(Read(slab.Part(i % 16 * unit, unit)))) << i;
  }
}

TEST_F(CudaScratchTest, GrowsSlotForOversizedOperation) {
  const Shape shape{{{1024, 3 << 10}, {3 << 10, 1024}}, 2};  // 6 MiB each
  Memory slab = At(64, 2 * shape.unit_bytes());
  slab.shape = &shape;
  const Memory both = slab;  // gathered, both and their sums exceed a slot
  uint64_t hash = 0;
  const HashOp op{both, &hash};
  const uint64_t buffers = FakeCuda::Calls("cuMemAlloc");
  const uint64_t wanted = HashOf(Read(both));
  for (size_t i = 0; i < 2 * CudaScratch::kSlots; ++i) {
    ASSERT_TRUE(device_->Hash({&op, 1}).Wait().ok());
    EXPECT_EQ(hash, wanted);
  }
  EXPECT_EQ(FakeCuda::Calls("cuMemAlloc"), buffers + CudaScratch::kSlots) << "each once";
}

TEST_F(CudaScratchTest, WritesHashAfterDeviceIsDestroyed) {
  uint64_t hash = 0;
  const HashOp op{At(0, 3 * kUnit), &hash};
  const Event event = device_->Hash({&op, 1});
  mapped_ = Mapping();
  space_.reset();
  device_.reset();
  EXPECT_EQ(hash, 0U);
  EXPECT_TRUE(event.Done());
  EXPECT_EQ(hash, HashHere(0, 3 * kUnit));
}

TEST_F(CudaScratchTest, ReportsErrorAndWritesNoHashWhenDriverCallFails) {
  uint64_t hash = 0;
  const HashOp op{At(0, kUnit), &hash};
  for (const char* call : {"cuMemcpyAsync", "cuLaunchKernel", "cuEventRecord", "cuEventCreate"}) {
    for (const uint64_t skip : {0, 1}) {
      if (skip == 1 && std::string(call) == "cuEventCreate") continue;  // it is called only once
      FakeCuda::Fail(call, CUDA_ERROR_NOT_SUPPORTED, skip);
      const Event event = device_->Hash({&op, 1});
      EXPECT_TRUE(event.Done()) << call;
      EXPECT_NE(event.Wait().message().find("operation not supported"), std::string::npos) << call;
      EXPECT_EQ(hash, 0U) << call;
      EXPECT_EQ(FakeCuda::Waiting(), 0U) << call << ": who is told may free what was hashed";
    }
  }
  ASSERT_TRUE(device_->Hash({&op, 1}).Wait().ok()) << "nothing of it stays";
  EXPECT_EQ(hash, HashHere(0, kUnit));
}

// All memory for launches is taken when the device is created.
TEST(CudaScratch, FailsAtDeviceCreationWhenGpuIsFull) {
  constexpr uint64_t kUnit = 2 << 20;
  FakeCuda::Become({.memory_mib = 24});
  const auto made = [&] {
    return CudaDevice::Make(CudaContext::Open(TANGRAM_FAKE_CUDA, 0).value(), {2 * kUnit, kUnit});
  };
  const Status full = made().status();
  EXPECT_EQ(full.code(), Code::kNoMemory);
  EXPECT_NE(full.message().find("scratch of 8388608 bytes for kernels: out of memory"),
            std::string::npos)
      << full.message();
  EXPECT_NE(full.message().find("of 25165824 bytes of NVIDIA H200 (recorded) are free"),
            std::string::npos)
      << full.message();
  FakeCuda::Become({});
  FakeCuda::Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  EXPECT_NE(made().status().message().find("bytes of pinned memory for kernels: out of memory"),
            std::string::npos);
  EXPECT_TRUE(made().ok());
}

}  // namespace
}  // namespace tangram::device
