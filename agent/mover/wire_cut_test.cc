#include "agent/mover/wire_cut.h"

#include <gtest/gtest.h>

namespace tangram::mover {
namespace {

device::Memory Range(uint64_t address, uint64_t bytes) { return {nullptr, address, bytes}; }

TEST(WireCut, SplitsOnlyOversizedRanges) {
  const std::vector<device::Memory> memories{Range(0, 60), Range(1000, 30), Range(2000, 50),
                                             Range(3000, 250), Range(4000, 0)};
  const auto cut = CutFor(memories, 100);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(*cut, (Cut{90, 50, 100, 100, 50}));
  CutWalk walk(memories);
  std::vector<uint64_t> begins;
  for (const uint64_t bytes : *cut) {
    const auto parts = walk.Next(bytes);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    uint64_t at = 0;
    for (const CutWalk::Part& part : *parts) {
      EXPECT_EQ(part.in_message, at);
      at += part.part.bytes;
      begins.push_back(part.part.address);
    }
    EXPECT_EQ(at, bytes);
  }
  EXPECT_EQ(begins, (std::vector<uint64_t>{0, 1000, 2000, 3000, 3100, 3200}));
  EXPECT_TRUE(walk.over());
  EXPECT_EQ(walk.Next(1).status().code(), Code::kInvalid) << "no more is there";
}

TEST(WireCut, KeepsSlabUnitsWhole) {
  const device::Shape slab{{{2, 5}, {4, 5}}, 8};  // units of 30 bytes
  const device::Memory units{nullptr, 0, 120, &slab, 2};
  const std::vector<device::Memory> memories{units};
  const auto cut = CutFor(memories, 100);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(*cut, (Cut{90, 30}));
  CutWalk walk(memories);
  ASSERT_TRUE(walk.Next(90).ok());
  const auto rest = walk.Next(30);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ((*rest)[0].part.unit, 5U);
  CutWalk wrong(memories);
  EXPECT_EQ(wrong.Next(100).status().code(), Code::kInvalid);
  EXPECT_EQ(CutFor(memories, 29).status().code(), Code::kUnavailable);
}

TEST(WireCut, RoundTrips) {
  const Cut cut{1, uint64_t{1} << 40};
  const WireBody body = WireBody().Add(cut).Add(uint32_t{7});
  const auto* const bytes = reinterpret_cast<const uint8_t*>(body.bytes().data());
  std::span<const uint8_t> left(bytes, body.bytes().size());
  const auto back = TakeCut(&left);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, cut);
  EXPECT_EQ(left.size(), sizeof(uint32_t));
  for (size_t size = 0; size < sizeof(uint32_t) + 2 * sizeof(uint64_t); ++size) {
    std::span<const uint8_t> part(bytes, size);
    EXPECT_FALSE(TakeCut(&part).ok()) << size;
  }
}

}  // namespace
}  // namespace tangram::mover
