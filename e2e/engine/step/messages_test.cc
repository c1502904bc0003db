// Invalid messages of a step are rejected before their contents are used.
#include <gtest/gtest.h>

#include <limits>

#include "e2e/engine/step/announced.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kBlock = 16, kMax = std::numeric_limits<uint32_t>::max();

Result<Announced> Sent(std::vector<BatchItem> items) {
  Announced announced;
  announced.batch.items = std::move(items);
  return Announced::Decode(announced.Encode(), kBlock);
}

TEST(AnnouncedStep, RejectsPositionsOutsideBlocks) {
  const Result<Announced> sound = Sent({{5, 27, {3, 4}}, {0, 0, {}}, {31, 1, {0, kMax}}});
  ASSERT_TRUE(sound.ok()) << sound.status().message();
  EXPECT_EQ(sound->batch.items[2].blocks, (std::vector<uint32_t>{0, kMax}));
  // Page lists are indexed by a position's block: these would be read beyond their end.
  EXPECT_FALSE(Sent({{5, 28, {3, 4}}}).ok());
  EXPECT_FALSE(Sent({{0, 1, {}}}).ok());
  EXPECT_FALSE(Sent({{kMax, 2, {1}}}).ok()) << "wraps to 1";
  EXPECT_FALSE(Sent({{kMax, kMax, {1}}}).ok());
}

TEST(AnnouncedStep, CountsRowsWithoutWrapping) {
  const std::vector<uint32_t> blocks(kMostRows / kBlock + 1);
  EXPECT_TRUE(Sent({{0, kMostRows - 1, blocks}, {0, 1, blocks}}).ok());
  EXPECT_FALSE(Sent({{0, kMostRows, blocks}, {0, 1, blocks}}).ok());
}

TEST(AnnouncedStep, ReportsBlocksFilledAheadOfFlip) {
  Announced told;
  told.filled = {7, {1, 2}, {3, 0}, {{0, 1, 1, 0, 3, 40, 1}, {2, 9, 0, 2, 2, kMax - 5, 5}}};
  const auto heard = Announced::Decode(told.Encode(), kBlock);
  ASSERT_TRUE(heard.ok()) << heard.status().message();
  EXPECT_EQ(heard->filled.attempt, 7u);
  EXPECT_EQ(heard->filled.blocks, told.filled.blocks);
  EXPECT_EQ(heard->filled.homes, told.filled.homes);
  EXPECT_EQ(heard->filled.strips, told.filled.strips);
  Announced uneven = told;
  uneven.filled.homes.pop_back();
  EXPECT_FALSE(Announced::Decode(uneven.Encode(), kBlock).ok());
  // Pages are counted from there.
  for (const kv::Strip& strip : {kv::Strip{0, 1, 1, 0, 0, 40, 1}, kv::Strip{0, 1, 1, 0, 2, kMax, 1},
                                 kv::Strip{0, 1, 1, kMax, 2, 4, 1}}) {
    told.filled.strips = {strip};
    EXPECT_FALSE(Announced::Decode(told.Encode(), kBlock).ok());
  }
}

}  // namespace
}  // namespace tangram::engine
