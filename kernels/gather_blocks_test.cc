#include "kernels/gather_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;

// Copies blocks by number on either side, or in order, and changes no bytes between them.
TEST(GatherBlocks, CopiesBlocksBetweenAnyNumbers) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 200; ++turn) {
    const uint64_t bytes = turn % 2 == 0 ? 16 * (1 + random() % 90) : 1 + random() % 300;
    const uint64_t from_at = random() % 4 * 4,
                   to_at = random() % 4 * 4;  // start of either side
    const uint64_t gap = turn % 2 == 0 ? 16 * (random() % 3) : random() % 20;
    const uint64_t blocks = 1 + random() % 20, count = random() % (blocks + 1);
    const uint64_t pitch = bytes + gap, to_pitch = pitch + random() % 3 * 4;
    std::vector<uint32_t> from_blocks(blocks), to_blocks(blocks);
    std::iota(from_blocks.begin(), from_blocks.end(), 0);
    std::iota(to_blocks.begin(), to_blocks.end(), 0);
    const bool from_any = random() % 4 != 0, to_any = random() % 2 != 0;
    if (from_any) std::shuffle(from_blocks.begin(), from_blocks.end(), random);
    if (to_any) std::shuffle(to_blocks.begin(), to_blocks.end(), random);
    std::vector<std::byte> from(from_at + blocks * pitch),
        to(to_at + blocks * to_pitch, std::byte(3)), expected = to;
    for (std::byte& byte : from) byte = std::byte(random());
    for (uint64_t i = 0; i < count; ++i) {
      std::copy_n(from.begin() + static_cast<int64_t>(from_at + from_blocks[i] * pitch), bytes,
                  expected.begin() + static_cast<int64_t>(to_at + to_blocks[i] * to_pitch));
    }
    const GatherBlocksParameters parameters{AddressOf(to) + to_at,
                                            to_pitch,
                                            to_any ? AddressOf(to_blocks) : 0,
                                            AddressOf(from) + from_at,
                                            pitch,
                                            from_any ? AddressOf(from_blocks) : 0,
                                            bytes,
                                            count};
    testing::Run("gather_blocks", GatherBlocksLaunch(parameters, 3), parameters,
                 turn % 3 == 0 ? testing::Order::kBackwards : testing::Order::kForwards);
    ASSERT_EQ(to, expected) << turn;
  }
}

}  // namespace
}  // namespace tangram::kernels
