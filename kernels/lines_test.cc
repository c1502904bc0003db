// The places of the words of lines.
#include "kernels/lines.h"

#include <gtest/gtest.h>

namespace tangram::kernels {
namespace {

template <typename Digit>
void ExpectFound() {
  for (Digit a = 1; a <= 5; ++a) {
    for (Digit b = 1; b <= 4; ++b) {
      for (Digit c = 1; c <= 3; ++c) {
        const Radices<4, Digit> grid{{a, b, c}};
        for (uint64_t step = 1; step <= 70; ++step) {
          auto place = grid.PlaceOf(3);
          for (uint64_t word = 3; word < 200;
               word += step, grid.Advance(&place, grid.PlaceOf(step))) {
            ASSERT_EQ(place.digit[0], word % a);
            ASSERT_EQ(place.digit[1], word / a % b);
            ASSERT_EQ(place.digit[2], word / a / b % c);
            ASSERT_EQ(place.digit[3], word / a / b / c);
          }
        }
      }
    }
  }
}

TEST(Lines, FindsWordsByDigitsAndByStep) {
  ExpectFound<uint64_t>();
  ExpectFound<uint32_t>();
}

TEST(Lines, FindsWordsBeyond32Bits) {
  const uint64_t words = (uint64_t{1} << 32) + 10;
  const Place<2> place = Radices<2>{{words}}.PlaceOf(7 * words + 5);
  EXPECT_EQ(place.digit[0], 5u);
  EXPECT_EQ(place.digit[1], 7u);
  EXPECT_EQ(Radices<2>{{3}}.PlaceOf((uint64_t{1} << 33) + 1).digit[1],
            ((uint64_t{1} << 33) + 1) / 3);
}

TEST(Lines, HostTwinDiesOnMisalignedAccess) {
  alignas(16) uint64_t words[4] = {1, 2, 3, 4};
  const auto at = reinterpret_cast<uint64_t>(words);
  DirectMemory memory;
  EXPECT_EQ(memory.Load<Word16>(at + 16).low, 3u);
  EXPECT_DEATH(memory.Load<Word16>(at + 8), "no multiple of 16");
  EXPECT_DEATH(memory.Store<uint32_t>(at + 2, 7), "no multiple of 4");
  EXPECT_DEATH(memory.Read<uint64_t>(at + 4), "no multiple of 8");
}

TEST(Lines, TilesCoverAllWords) {
  EXPECT_EQ(TilesOf(0, 100, 16), 0u);
  EXPECT_EQ(TilesOf(5, 0, 16), 0u);
  EXPECT_EQ(TilesOf(1, 1, 16), 1u);
  EXPECT_EQ(TilesOf(kTileWords, 16, 16), 1u);
  EXPECT_EQ(TilesOf(kTileWords, 17, 16), 2u);
  EXPECT_EQ(TilesOf(kTileWords, 17, 1), 17u);
}

TEST(Lines, SelectsWidestAccessForOredValues) {
  for (uint64_t a = 0; a < 64; ++a) {
    for (uint64_t b = 0; b < 64; ++b) {
      const uint32_t width = WidthOf(a | b);
      EXPECT_TRUE(a % width == 0 && b % width == 0);
      EXPECT_TRUE(width == 16 || a % (2 * width) != 0 || b % (2 * width) != 0);
    }
  }
}

}  // namespace
}  // namespace tangram::kernels
