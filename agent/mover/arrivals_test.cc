// Units received into memory that the CPU reaches, and into memory that it does not reach.
#include "agent/mover/arrivals.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

#include "agent/device/hash.h"
#include "agent/device/platform.h"
#ifdef TANGRAM_FAKE_CUDA
#include "agent/device/testing/fake_cuda.h"
#endif

namespace tangram::mover {
namespace {

constexpr uint64_t kBytes = 32 << 20;

std::vector<std::string> Platforms() {
#ifdef TANGRAM_FAKE_CUDA
  return {"host", "cuda"};
#else
  return {"host"};
#endif
}

class ArrivalsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    device::PlatformOptions options{.name = GetParam(), .map_bytes = 2 << 20};
#ifdef TANGRAM_FAKE_CUDA
    device::testing::FakeCuda::Become({});
    options.driver = TANGRAM_FAKE_CUDA;
#endif
    auto platform = device::MakePlatform(options);
    ASSERT_TRUE(platform.ok()) << platform.status().message();
    devices_ = (*platform)->Make("rank", {kBytes, 2 << 20, 4096}).value();
    std::tie(space_, mapped_) = device::MapWhole(*devices_.weights).value();
    come_.resize(kBytes);
    std::mt19937 random(3);
    for (std::byte& byte : come_) byte = std::byte(random());
  }
  device::Memory At(uint64_t offset, uint64_t bytes) {
    return {devices_.weights.get(), space_->address() + offset, bytes};
  }
  std::vector<std::byte> Read(const device::Memory& from) {
    std::vector<std::byte> out(from.bytes);
    const device::CopyOp op{device::Memory::Own(out), from};
    EXPECT_TRUE(devices_.weights->Copy({&op, 1}).Wait().ok());
    return out;
  }
  // Reads the next bytes of come_, like a stream.
  Arrivals::Read Next() {
    return [this](std::span<std::byte> to) {
      std::copy_n(come_.begin() + static_cast<int64_t>(at_), to.size(), to.begin());
      at_ += to.size();
      ++reads_;
      return OkStatus();
    };
  }

  device::RankDevices devices_;
  device::SpacePtr space_;
  device::Mapping mapped_;
  std::vector<std::byte> come_;
  uint64_t at_ = 0;
  int reads_ = 0;
  Arrivals::Buffers buffers_;
};

INSTANTIATE_TEST_SUITE_P(Platforms, ArrivalsTest, ::testing::ValuesIn(Platforms()));

TEST_P(ArrivalsTest, WritesUnitsAndReportsHashesInOrder) {
  // Some fill a buffer and a half, one is larger than a buffer, the last is one byte.
  const std::vector<uint64_t> sizes{1000, 3 << 20, 2 << 20, 5, (9 << 20) + 3, 0, 3 << 20, 1};
  std::vector<uint64_t> hashes;
  Arrivals arrivals(&buffers_, [&](size_t unit, uint64_t hash) {
    EXPECT_EQ(unit, hashes.size());
    hashes.push_back(hash);
    return OkStatus();
  });
  uint64_t to = 7;
  std::vector<device::Memory> places;
  for (const uint64_t size : sizes) {
    places.push_back(At(to, size));
    ASSERT_TRUE(arrivals.Take(places.back(), Next()).ok());
    to += size + 3;
  }
  ASSERT_TRUE(arrivals.Finish().ok());
  ASSERT_EQ(hashes.size(), sizes.size());
  uint64_t from = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto want = std::span(come_).subspan(from, sizes[i]);
    EXPECT_EQ(hashes[i], device::HashOf(want)) << i;
    EXPECT_TRUE(std::ranges::equal(Read(places[i]), want)) << i;
    from += sizes[i];
  }
}

TEST_P(ArrivalsTest, WritesSlabUnitsInterleaved) {
  const device::Shape shape{{{3, 1000}, {7, 100}}, 4};
  device::Memory slab = At(64, 4 * shape.unit_bytes());
  slab.shape = &shape;
  uint64_t came = 0;
  Arrivals arrivals(&buffers_, [&](size_t, uint64_t hash) {
    came = hash;
    return OkStatus();
  });
  const device::Memory unit = slab.Part(2 * shape.unit_bytes(), shape.unit_bytes());
  ASSERT_TRUE(arrivals.Take(unit, Next()).ok());
  ASSERT_TRUE(arrivals.Finish().ok());
  const auto want = std::span(come_).first(shape.unit_bytes());
  EXPECT_EQ(came, device::HashOf(want));
  EXPECT_TRUE(std::ranges::equal(Read(unit), want));
}

TEST_P(ArrivalsTest, StopsWhenCallbackOrReaderFails) {
  const Status no{Code::kCorrupt, "no"};
  Arrivals refused(&buffers_, [&](size_t, uint64_t) { return no; });
  Status status = refused.Take(At(0, 100), Next());
  if (status.ok()) status = refused.Finish();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  Arrivals arrivals(&buffers_, [](size_t, uint64_t) { return OkStatus(); });
  const auto broken = [&](std::span<std::byte>) { return no; };
  EXPECT_EQ(arrivals.Take(At(0, 100), broken).code(), Code::kCorrupt);
}

#ifdef TANGRAM_FAKE_CUDA
class CudaArrivals : public ArrivalsTest {};
INSTANTIATE_TEST_SUITE_P(Gpu, CudaArrivals, ::testing::Values("cuda"));

#ifdef TANGRAM_CUDA
// 512 units of 16 KiB: two full buffers. (Without kernels the host hashes one after another.)
TEST_P(CudaArrivals, CallsDriverPerBatchNotPerUnit) {
  using device::testing::FakeCuda;
  const auto calls = [] {
    return FakeCuda::Calls("cuLaunchKernel") + FakeCuda::Calls("cuEventRecord") +
           FakeCuda::Calls("cuEventSynchronize") + FakeCuda::Calls("cuMemHostAlloc");
  };
  for (const uint64_t more : {30U, 26U}) {  // only the first batch creates buffers
    const uint64_t before = calls(), copies = FakeCuda::Calls("cuMemcpyAsync");
    Arrivals arrivals(&buffers_, [](size_t, uint64_t) { return OkStatus(); });
    at_ = 0;
    for (uint64_t u = 0; u < 512; ++u) {
      ASSERT_TRUE(arrivals.Take(At(u << 14, 1 << 14), Next()).ok());
    }
    ASSERT_TRUE(arrivals.Finish().ok());
    EXPECT_LE(calls() - before, more);
    EXPECT_LE(FakeCuda::Calls("cuMemcpyAsync") - copies, 512 + 8U) << "one for each, and lists";
  }
  EXPECT_EQ(FakeCuda::Complaint(), "");
}

#endif

TEST_P(CudaArrivals, WaitsForCopiesWhenAbandoned) {
  using device::testing::FakeCuda;
  {
    Arrivals arrivals(&buffers_, [](size_t, uint64_t) { return OkStatus(); });
    for (uint64_t u = 0; u < 3; ++u) {
      ASSERT_TRUE(arrivals.Take(At(u << 21, 2 << 20), Next()).ok());
    }
    EXPECT_GT(FakeCuda::Waiting(), 0U);
  }
  EXPECT_EQ(FakeCuda::Waiting(), 0U) << "else a copy would read a buffer that somebody fills anew";
}
#endif

}  // namespace
}  // namespace tangram::mover
