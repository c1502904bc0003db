// An engine's addresses over GPU memory, whose descriptors have no size: with the recording driver.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "agent/client/regions.h"
#include "agent/device/platform.h"
#include "agent/device/testing/fake_cuda.h"

namespace tangram {
namespace {

using device::testing::FakeCuda;

constexpr uint64_t kUnit = 2 << 20;

class CudaRegionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeCuda::Become({});
    auto made =
        device::MakePlatform({.name = "cuda", .map_bytes = kUnit, .driver = TANGRAM_FAKE_CUDA});
    ASSERT_TRUE(made.ok()) << made.status().message();
    platform_ = std::move(made).value();
    agent_ = platform_->Make("rank", {4 * kUnit, kUnit, 4096}).value();
    auto whole = device::MapWhole(*agent_.weights).value();
    exported_ = agent_.weights->ExportOf(whole.second.block()).value();
    ASSERT_EQ(exported_.extents.size(), 4U) << "a handle each";
    for (uint64_t u = 0; u < 4; ++u) {
      const std::vector<std::byte> bytes(kUnit, std::byte(10 + u));
      Copy({agent_.weights.get(), whole.first->address() + u * kUnit, kUnit}, bytes);
      table_.Add(static_cast<uint32_t>(u),
                 UniqueFd(fcntl(exported_.descriptors[u]->get(), F_DUPFD_CLOEXEC, 0)));
    }
    auto region = Region::Reserve(platform_->Importers().weights, 6 * kUnit, device::Access::kRead);
    ASSERT_TRUE(region.ok()) << region.status().message();
    region_ = std::move(*region);
  }
  void TearDown() override { EXPECT_EQ(FakeCuda::Complaint(), ""); }

  static void Copy(const device::Memory& to, std::vector<std::byte> from) {
    const device::CopyOp op{to, device::Memory::Own(from)};
    EXPECT_TRUE(to.device->Copy({&op, 1}).Wait().ok());
  }
  static Extents Of(const std::vector<uint32_t>& handles, uint64_t bytes = kUnit) {
    Extents out;
    for (const uint32_t handle : handles) {
      v1::Extent* extent = out.Add();
      extent->set_fd_index(handle);
      extent->set_length(bytes);
    }
    return out;
  }
  // The byte that an engine's kernel would read in that unit of the region.
  int At(uint64_t unit) {
    std::vector<std::byte> byte(1);
    const auto address = reinterpret_cast<uint64_t>(region_.data()) + unit * kUnit + 12345;
    const device::CopyOp op{device::Memory::Own(byte), {agent_.weights.get(), address, 1}};
    EXPECT_TRUE(agent_.weights->Copy({&op, 1}).Wait().ok());
    return static_cast<int>(byte[0]);
  }

  std::unique_ptr<device::Platform> platform_;
  device::RankDevices agent_;
  device::Export exported_;
  DescriptorTable table_;
  Region region_;
};

TEST_F(CudaRegionTest, MapsHandlesInAnyOrderAndUnmapsOneByOne) {
  ASSERT_TRUE(region_.Map(0, Of({2, 0, 3}), table_).ok());
  ASSERT_TRUE(region_.Map(4 * kUnit, Of({1}), table_).ok());
  EXPECT_EQ(std::vector<int>({At(0), At(1), At(2), At(4)}), std::vector<int>({12, 10, 13, 11}));
  ASSERT_TRUE(region_.Unmap(kUnit, kUnit).ok());
  EXPECT_FALSE(region_.Uses(0));
  EXPECT_TRUE(region_.Uses(2));
  // Existing mappings stay; only the rest is mapped by the driver.
  const uint64_t before = FakeCuda::Calls("cuMemMap");
  ASSERT_TRUE(region_.Map(0, Of({2, 1, 3}), table_).ok());
  EXPECT_EQ(FakeCuda::Calls("cuMemMap"), before + 1);
  EXPECT_EQ(std::vector<int>({At(0), At(1), At(2)}), std::vector<int>({12, 11, 13}));
  EXPECT_EQ(region_.mapped_bytes(), 4 * kUnit);
}

TEST_F(CudaRegionTest, RejectsHandleSmallerThanDeclared) {
  EXPECT_EQ(region_.Map(0, Of({0}, 2 * kUnit), table_).code(), Code::kInvalid);
  EXPECT_NE(FakeCuda::Complaint().find("it has fewer"), std::string::npos);
  EXPECT_EQ(region_.Map(0, Of({1}, 7 * kUnit), table_).code(), Code::kInvalid) << "no room";
  EXPECT_EQ(region_.mapped_bytes(), 0U);
}

}  // namespace
}  // namespace tangram
