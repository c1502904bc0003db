#include "e2e/engine/kv/kv_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "e2e/engine/testing/device_memory.h"

namespace tangram::engine {
namespace {

using testing::DeviceMemory;

constexpr uint64_t kPage = 1000;  // not a multiple of anything

std::vector<std::byte> Filled(int value) { return std::vector<std::byte>(kPage, std::byte(value)); }

class KvMemoryTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::byte* Page(uint32_t page) { return static_cast<std::byte*>(kv_.base()) + page * kPage; }
  Status Bring(uint32_t first, uint32_t count) {
    const KvMemory::Pages pages{first, count};
    return kv_.Bring({&pages, 1});
  }
  int At(uint32_t page) { return static_cast<int>(*Page(page)); }

  DeviceMemory memory_{GetParam()};
  KvMemory kv_{memory_.device(), memory_.address(), 100 * kPage, kPage};
};

INSTANTIATE_TEST_SUITE_P(Platforms, KvMemoryTest, ::testing::ValuesIn(testing::Platforms()));

TEST_P(KvMemoryTest, WritesResultsOfStepToRegion) {
  memory_.Put(7 * kPage, Filled(7));
  memory_.Put(8 * kPage, Filled(8));
  ASSERT_TRUE(Bring(7, 2).ok());
  EXPECT_EQ(At(7), 7);
  kv_.Write({8, 1});
  std::memset(Page(8) + 1, 88, 10);  // a part of the page: the rest was loaded before
  ASSERT_TRUE(kv_.Flush().ok());
  std::vector<std::byte> want = Filled(8);
  std::fill_n(want.begin() + 1, 10, std::byte(88));
  EXPECT_EQ(memory_.Get(8 * kPage, kPage), want);
  EXPECT_EQ(memory_.Get(7 * kPage, kPage), Filled(7));
}

TEST_P(KvMemoryTest, SeesExternalWritesAfterForget) {
  ASSERT_TRUE(Bring(3, 1).ok());
  memory_.Put(3 * kPage, Filled(30));
  kv_.Forget();
  ASSERT_TRUE(Bring(3, 1).ok());
  EXPECT_EQ(At(3), 30);
}

TEST_P(KvMemoryTest, SeesCopiesWithinRegionWithoutForget) {
  memory_.Put(1 * kPage, Filled(1));
  ASSERT_TRUE(Bring(4, 2).ok());
  const std::vector<KvMemory::Move> moves{{4 * kPage + 500, kPage, 1000}};  // across two pages
  ASSERT_TRUE(kv_.Copy(moves).ok());
  ASSERT_TRUE(Bring(4, 2).ok());
  EXPECT_EQ(static_cast<int>(Page(4)[499]), 0);
  EXPECT_EQ(static_cast<int>(Page(4)[500]), 1);
  EXPECT_EQ(static_cast<int>(Page(5)[499]), 1);
  EXPECT_EQ(static_cast<int>(Page(5)[500]), 0);
}

TEST_P(KvMemoryTest, LeavesRegionUnchangedWhenStepIsAbandoned) {
  if (GetParam() == "host") {
    EXPECT_EQ(kv_.base(), memory_.address()) << "in place: what was written is there at once";
    return;
  }
  memory_.Put(2 * kPage, Filled(2));
  ASSERT_TRUE(Bring(2, 1).ok());
  kv_.Write({2, 1});
  std::memset(Page(2), 99, kPage);
  kv_.Forget();
  ASSERT_TRUE(kv_.Flush().ok());
  EXPECT_EQ(memory_.Get(2 * kPage, kPage), Filled(2));
}

#ifdef TANGRAM_FAKE_CUDA
TEST(KvMemory, MergesAdjacentPagesAndSkipsCurrentOnes) {
  using device::testing::FakeCuda;
  DeviceMemory memory("cuda");
  KvMemory kv(memory.device(), memory.address(), 100 * kPage, kPage);
  const std::vector<KvMemory::Pages> pages{{12, 3}, {10, 2}, {40, 1}};
  const auto copies = [before = FakeCuda::Calls("cuMemcpyAsync")] {
    return FakeCuda::Calls("cuMemcpyAsync") - before;
  };
  ASSERT_TRUE(kv.Bring(pages).ok());
  EXPECT_EQ(copies(), 2U);
  ASSERT_TRUE(kv.Bring(pages).ok());
  EXPECT_EQ(copies(), 2U);
  kv.Write({11, 2});
  ASSERT_TRUE(kv.Flush().ok());
  EXPECT_EQ(copies(), 3U);
  ASSERT_TRUE(kv.Flush().ok());
  EXPECT_EQ(copies(), 3U) << "what was written is there";
  FakeCuda::Fail("cuMemcpyAsync", CUDA_ERROR_UNKNOWN);
  kv.Write({11, 2});
  EXPECT_FALSE(kv.Flush().ok());
  ASSERT_TRUE(kv.Flush().ok());
  EXPECT_EQ(copies(), 5U) << "what failed is still to be written";
  EXPECT_EQ(FakeCuda::Complaint(), "");
}
#endif

}  // namespace
}  // namespace tangram::engine
