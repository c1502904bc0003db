// Strips of any shape are copied, and no byte next to them changes.
#include "kernels/copy_strips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;
using testing::Order;

std::vector<std::byte> Noise(size_t bytes, std::mt19937* random) {
  std::vector<std::byte> out(bytes);
  std::generate(out.begin(), out.end(), [&] { return std::byte((*random)()); });
  return out;
}

// Strips between two buffers, by offsets.
class Buffers {
 public:
  Buffers(size_t bytes, std::mt19937* random)
      : from_(Noise(bytes + 16, random)), to_(Noise(bytes + 16, random)), expected_(to_) {}

  // The definition of a strip, byte by byte. Offsets are from an address that is a multiple of 16.
  void Add(CopyStrip strip) {
    strip.from += Aligned(from_);
    strip.to += Aligned(to_);
    for (uint64_t l = 0; l < strip.lines; ++l) {
      for (uint64_t b = 0; b < strip.bytes; ++b) {
        expected_.at(strip.to + l * strip.to_pitch + b) =
            from_.at(strip.from + l * strip.from_pitch + b);
      }
    }
    strip.from += AddressOf(from_);
    strip.to += AddressOf(to_);
    strips_.push_back(strip);
  }
  // Whether a launch makes exactly these copies. `start`: modulo the tiles.
  bool Copied(Launch launch, uint64_t start, Order order = Order::kForwards) {
    const uint64_t units = NumberStrips(strips_);
    const CopyStripsParameters parameters{AddressOf(strips_), strips_.size(), units,
                                          units == 0 ? 0 : start % units};
    testing::Run("copy_strips", launch, parameters, order);
    return to_ == expected_;
  }
  uint64_t Tiles() { return NumberStrips(strips_); }

 private:
  static uint64_t Aligned(const std::vector<std::byte>& bytes) { return -AddressOf(bytes) % 16; }

  std::vector<std::byte> from_, to_, expected_;
  std::vector<CopyStrip> strips_;
};

TEST(CopyStrips, CopiesEverySmallShapeAndOffset) {
  std::mt19937 random(1);
  int copied = 0;
  for (uint64_t lines = 1; lines <= 4; ++lines) {
    for (uint64_t bytes = 1; bytes <= 40; ++bytes) {
      for (uint64_t at = 0; at < 16; ++at) {
        for (const uint64_t gap : {0, 1, 6, 16}) {
          Buffers buffers(4 * 80, &random);
          buffers.Add({at, bytes + gap, gap == 6 ? 4 * at : at, bytes + gap % 16, bytes, lines, 0});
          ASSERT_TRUE(buffers.Copied({1, 32}, 0))
              << lines << " " << bytes << " " << at << " " << gap;
          ++copied;
        }
      }
    }
  }
  EXPECT_EQ(copied, 4 * 40 * 16 * 4);
}

// A few strips, some longer than a tile, with gaps of other strips between.
TEST(CopyStrips, CopiesAnyListWithAnyGridAndStart) {
  std::mt19937 random(2);
  for (int turn = 0; turn < 40; ++turn) {
    Buffers buffers(400'000, &random);
    uint64_t to = 0, from = 0;
    for (int i = 0; i < 6; ++i) {
      const uint64_t unit = uint64_t{1} << random() % 6;
      CopyStrip strip{to, 0, from, 0, unit * (random() % 10), random() % 99, 0};
      if (random() % 4 == 0) strip.bytes += random() % 16;
      if (random() % 4 == 0) strip = {to, 0, from, 0, random() % 70'000, 1, 0};
      strip.to_pitch = strip.bytes + unit * (random() % 8);
      strip.from_pitch = strip.bytes + unit * (random() % 8);
      to += strip.lines * strip.to_pitch + random() % 3 * unit;
      from += strip.lines * strip.from_pitch + random() % 3 * unit;
      buffers.Add(strip);
    }
    const Launch launch{1 + static_cast<uint32_t>(random()) % 9, 32u << random() % 5};
    const Order order = turn % 4 == 0 ? Order::kBackwards : Order::kForwards;
    ASSERT_TRUE(buffers.Copied(launch, random(), order)) << turn;
  }
}

TEST(CopyStrips, CopiesAllTilesFromEveryRingStart) {
  std::mt19937 random(3);
  for (uint64_t start = 0; start < 8; ++start) {
    for (uint32_t blocks = 1; blocks < 12; ++blocks) {
      Buffers buffers(8 * kTileWords, &random);
      for (uint64_t i = 0; i < 8; ++i) {
        buffers.Add({i * kTileWords, 7, i * kTileWords + 1, 7, 7, kTileWords / 7, 0});
      }
      ASSERT_EQ(buffers.Tiles(), 8u);
      ASSERT_TRUE(buffers.Copied({blocks, 512}, start));
    }
  }
}

TEST(CopyStrips, SelectsAccessWidthByAddressesAndPitches) {
  EXPECT_EQ(AccessOf(CopyStrip{32, 48, 64, 16, 5, 2, 0}), 16u);
  EXPECT_EQ(AccessOf(CopyStrip{32, 40, 64, 16, 5, 2, 0}), 4u);
  EXPECT_EQ(AccessOf(CopyStrip{32, 40, 64, 16, 5, 1, 0}), 16u) << "one line has no pitch";
  EXPECT_EQ(AccessOf(CopyStrip{32, 48, 68, 16, 5, 2, 0}), 4u);
  EXPECT_EQ(AccessOf(CopyStrip{34, 48, 68, 16, 5, 2, 0}), 1u);
  EXPECT_EQ(AccessOf(CopyStrip{33, 48, 64, 16, 5, 2, 0}), 1u);
}

}  // namespace
}  // namespace tangram::kernels
