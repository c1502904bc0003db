// Hashes by the kernels of kernels/, over the recording driver, which runs their text.
#include "agent/device/cuda_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "agent/device/cuda.h"
#include "agent/device/hash.h"
#include "agent/device/testing/fake_cuda.h"

namespace tangram::device {
namespace {

using testing::FakeCuda;

constexpr uint64_t kUnit = 2 << 20, kUnits = 8;

class CudaHashTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto context = CudaContext::Open(TANGRAM_FAKE_CUDA, 0);
    ASSERT_TRUE(context.ok()) << context.status().message();
    device_ = CudaDevice::Make(*context, {kUnits * kUnit, kUnit}).value();
    std::tie(space_, mapped_) = MapWhole(*device_).value();
    bytes_.resize(kUnits * kUnit);
    std::mt19937_64 random(7);
    for (size_t i = 0; i < bytes_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&bytes_[i], &word, 8);
    }
    const CopyOp op{At(0, bytes_.size()), Memory::Own(bytes_)};
    ASSERT_TRUE(device_->Copy({&op, 1}).Wait().ok());
  }
  Memory At(uint64_t offset, uint64_t bytes) const {
    return {device_.get(), space_->address() + offset, bytes};
  }
  uint64_t HashHere(uint64_t offset, uint64_t bytes) const {
    return HashOf(std::span(bytes_).subspan(offset, bytes));
  }

  std::unique_ptr<CudaDevice> device_;
  SpacePtr space_;
  Mapping mapped_;
  std::vector<std::byte> bytes_;
};

TEST_F(CudaHashTest, IsThatOfTheHostWhateverTheLengthAndTheAddress) {
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

// A list goes there, results come back; the bytes that are hashed stay where they are.
TEST_F(CudaHashTest, NothingOfTheBytesComesToTheHost) {
  std::vector<uint64_t> came(kUnits);
  std::vector<HashOp> ops;
  for (uint64_t u = 0; u < kUnits; ++u) ops.push_back({At(u * kUnit, kUnit), &came[u]});
  const uint64_t copies = FakeCuda::Calls("cuMemcpyAsync");
  ASSERT_TRUE(device_->Hash(ops).Wait().ok());
  EXPECT_EQ(FakeCuda::Calls("cuMemcpyAsync"), copies + 2);
  EXPECT_EQ(FakeCuda::Calls("cuLaunchKernel"), 2U);
  for (uint64_t u = 0; u < kUnits; ++u) EXPECT_EQ(came[u], HashHere(u * kUnit, kUnit));
}

TEST_F(CudaHashTest, IsThereWhenItsEventIsAndNotBefore) {
  std::vector<std::byte> other(kUnit, std::byte{3});
  uint64_t copied = 1, hashed = 2;
  const CopyOp copy{At(0, kUnit), Memory::Own(other), &copied};
  const Event one = device_->Copy({&copy, 1});
  const HashOp hash{At(kUnit - 5, 10), &hashed};  // of what the copy writes, too
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

// They share lists, results and scratch, which grow under the second.
TEST_F(CudaHashTest, BatchesFollowEachOtherWithoutAWait) {
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

TEST_F(CudaHashTest, WhatNobodyWaitsForIsWrittenNowhere) {
  auto hash = std::make_unique<uint64_t>(5);
  const HashOp op{At(0, kUnit), hash.get()};
  (void)device_->Hash({&op, 1});
  EXPECT_EQ(*hash, 5U);
  hash.reset();  // the event is gone: nothing is to be written any more
  EXPECT_EQ(FakeCuda::Waiting(), 0U);
}

TEST_F(CudaHashTest, WhatIsUnmappedIsHashedFirst) {
  uint64_t hash = 0;
  const HashOp op{At(0, kUnit), &hash};
  const Event event = device_->Hash({&op, 1});
  mapped_ = Mapping();
  EXPECT_TRUE(event.Wait().ok());
  EXPECT_EQ(hash, HashHere(0, kUnit));
}

TEST_F(CudaHashTest, ALaunchThatTheDriverRefusesFailsTheBatch) {
  uint64_t hash = 5;
  const HashOp op{At(0, kUnit), &hash};
  for (const uint64_t skip : {0U, 1U}) {
    FakeCuda::Fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, skip);
    const Status failed = device_->Hash({&op, 1}).Wait();
    EXPECT_EQ(failed.code(), Code::kInternal);
    EXPECT_NE(failed.message().find("hashing 1 ranges"), std::string::npos) << failed.message();
    EXPECT_EQ(hash, 5U);
  }
  EXPECT_TRUE(device_->Hash({&op, 1}).Wait().ok());
  EXPECT_EQ(hash, HashHere(0, kUnit));
}

}  // namespace
}  // namespace tangram::device
