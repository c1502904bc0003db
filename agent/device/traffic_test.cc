#include "agent/device/traffic.h"

#include <gtest/gtest.h>

namespace tangram::device {
namespace {

// An expert of 8 granules: two matrices by rows, one by columns of 256 bytes.
const Shape kExpert{{{1, 8192}, {1, 8192}, {32, 256}}, 0};
constexpr uint64_t kUnit = 3 * 8192;
constexpr uint64_t kLastStripe = 64;  // of a range: hash_chain reads it

MoveTraffic Count(const UnitMove& move, bool interleaved) {
  auto found = CountMove(move, kExpert, interleaved);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() ? *found : MoveTraffic{};
}

TEST(MoveTraffic, CountsConsecutiveUnitsAsOneRange) {
  const MoveTraffic found = Count({8, 2, 3, 1, 2}, false);
  EXPECT_EQ(found.ranges, 1u);
  EXPECT_EQ(found.range_bytes, 2 * kUnit);
  EXPECT_EQ(found.strips.loads.requests, 0u);
  EXPECT_EQ(found.gather.loads.requests, 0u) << "they are hashed where they lie";
  EXPECT_EQ(found.alone.loads.bytes, 2 * kUnit);
  EXPECT_EQ(found.alone.stores.full_share(), 1);
  EXPECT_EQ(found.sums.loads.bytes, 2 * (kUnit - kLastStripe));
}

TEST(MoveTraffic, CopiesInterleavedRowsByEngineAndColumnsByKernel) {
  const MoveTraffic found = Count({8, 2, 3, 1, 2}, true);
  EXPECT_EQ(found.ranges, 2u * 2);
  EXPECT_EQ(found.range_bytes, 2u * 2 * 8192);
  EXPECT_EQ(found.strips.loads.bytes, 2u * 8192);
  EXPECT_EQ(found.strips.stores.bytes, 2u * 8192);
  EXPECT_EQ(found.strips.loads.full_share(), 1);
  EXPECT_EQ(found.alone.loads.bytes, 2 * kUnit);
  EXPECT_EQ(found.gather.stores.bytes, 2 * kUnit) << "each is brought together to be hashed";
  EXPECT_EQ(found.sums.loads.bytes, 2 * (kUnit - kLastStripe));
}

TEST(MoveTraffic, CountsPartialSectorsForNarrowColumns) {
  const Shape narrow{{{64, 8}}, 0};
  const auto found = CountMove({4, 1, 4, 1, 1}, narrow, true);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->strips.loads.full, 0u);
  EXPECT_EQ(found->strips.loads.bytes, 64u * 8);
  EXPECT_GE(found->strips.loads.sectors, 64u);
}

TEST(MoveTraffic, RejectsUnitsOutsideSlab) {
  for (const UnitMove& move :
       {UnitMove{8, 7, 8, 0, 2}, {8, 0, 8, 9, 1}, {8, 0, 8, 0, 0}, {8, 0, 8, 1, UINT64_MAX}}) {
    const auto found = CountMove(move, kExpert, true);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), Code::kInvalid);
  }
  EXPECT_FALSE(CountMove({8, 0, 8, 0, 1}, Shape{}, false).ok()) << "units without bytes";
}

}  // namespace
}  // namespace tangram::device
