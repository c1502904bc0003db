#include "e2e/engine/world/reader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "e2e/engine/testing/device_memory.h"

namespace tangram::engine {
namespace {

using testing::DeviceMemory;

class ReaderTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Platforms, ReaderTest, ::testing::ValuesIn(testing::Platforms()));

TEST_P(ReaderTest, ReadsEachRangeFromAnyDevice) {
  DeviceMemory memory(GetParam());
  memory.Put(100, {std::byte(1), std::byte(2), std::byte(3)});
  memory.Put(5000, {std::byte(9)});
  Reader reader(memory.device());
  const std::vector<Reader::Range> ranges{
      {memory.address() + 5000, 1}, {memory.address() + 100, 3}, {memory.address() + 101, 2}};
  const auto read = reader.Read(ranges);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 3U);
  EXPECT_EQ(std::memcmp((*read)[0], "\x09", 1), 0);
  EXPECT_EQ(std::memcmp((*read)[1], "\x01\x02\x03", 3), 0);
  EXPECT_EQ(std::memcmp((*read)[2], "\x02\x03", 2), 0);
  const auto nothing = reader.Read(std::vector<Reader::Range>{{nullptr, 7}});
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->front(), nullptr) << "what is not there yet is for the caller to refuse";
}

TEST_P(ReaderTest, ReadsAgainAfterForget) {
  DeviceMemory memory(GetParam());
  const std::vector<Reader::Range> range{{memory.address(), 2}};
  memory.Put(0, {std::byte(1), std::byte(1)});
  Reader reader(memory.device());
  ASSERT_TRUE(reader.Read(range).ok());
  memory.Put(0, {std::byte(2), std::byte(2)});
  reader.Forget();
  const auto again = reader.Read(range);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(std::memcmp(again->front(), "\x02\x02", 2), 0);
}

TEST(Reader, ReadsCpuAccessibleMemoryInPlace) {
  DeviceMemory memory("host");
  Reader reader(memory.device());
  const auto read = reader.Read(std::vector<Reader::Range>{{memory.address() + 64, 64}});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->front(), memory.address() + 64);
  EXPECT_EQ(reader.kept_bytes(), 0U);
}

#ifdef TANGRAM_FAKE_CUDA
TEST(Reader, CopiesGpuMemoryOnceInOneBatch) {
  using device::testing::FakeCuda;
  DeviceMemory memory("cuda");
  Reader reader(memory.device());
  const std::vector<Reader::Range> ranges{{memory.address(), 10}, {memory.address() + 10, 10}};
  const uint64_t before = FakeCuda::Calls("cuEventRecord");
  const auto read = reader.Read(ranges);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(FakeCuda::Calls("cuEventRecord"), before + 1);
  const uint64_t copies = FakeCuda::Calls("cuMemcpyAsync");
  EXPECT_EQ(*reader.Read(ranges), *read);
  EXPECT_EQ(FakeCuda::Calls("cuMemcpyAsync"), copies) << "they are kept";
  EXPECT_EQ(reader.kept_bytes(), 20U);
  FakeCuda::Fail("cuMemcpyAsync", CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(reader.Read(std::vector<Reader::Range>{{memory.address() + 20, 5}}).ok());
  EXPECT_EQ(reader.kept_bytes(), 20U) << "what failed is not kept";
  EXPECT_EQ(FakeCuda::Complaint(), "");
}
#endif

}  // namespace
}  // namespace tangram::engine
