// Compares the free list with a model that is too simple to be wrong: one bit per unit.
#include "agent/device/arena.h"

#include <gtest/gtest.h>

#include <random>

#include "agent/device/occupancy.h"

namespace tangram::device {
namespace {

TEST(Arena, MatchesBitmapForTakeGiveAndClaim) {
  constexpr uint64_t kUnit = 256, kUnits = 64;
  Arena arena(kUnits * kUnit, kUnit);
  std::vector<bool> used(kUnits);
  std::vector<std::vector<Extent>> held;
  std::mt19937_64 draw(5);
  const auto mark = [&](const std::vector<Extent>& extents, bool value) {
    for (const Extent& extent : extents) {
      for (uint64_t u = extent.offset / kUnit; u < (extent.offset + extent.length) / kUnit; ++u) {
        ASSERT_NE(used[u], value) << "unit " << u;
        used[u] = value;
      }
    }
  };
  int refused = 0;
  for (int step = 0; step < 5000; ++step) {
    const auto free = static_cast<uint64_t>(std::count(used.begin(), used.end(), false));
    ASSERT_EQ(arena.free_bytes(), free * kUnit);
    const uint64_t units = draw() % 9 + 1;
    if (draw() % 2 == 0) {
      auto got = arena.Take(units * kUnit);
      ASSERT_EQ(got.ok(), units <= free);
      if (!got.ok()) {
        ++refused;
        ASSERT_EQ(got.status().code(), Code::kNoMemory);
        continue;
      }
      mark(*got, true);
      held.push_back(*got);
    } else if (!held.empty()) {
      const size_t i = draw() % held.size();
      arena.Give(held[i]);
      mark(held[i], false);
      if (draw() % 2 == 0) {  // the same again, by its place
        ASSERT_TRUE(arena.Claim(held[i]).ok());
        mark(held[i], true);
      } else {
        held.erase(held.begin() + static_cast<int64_t>(i));
      }
    }
  }
  EXPECT_GT(refused, 50);
  for (const auto& extents : held) arena.Give(extents);
  EXPECT_EQ(arena.Take(kUnits * kUnit)->size(), 1U) << "what is free side by side is one run";
}

TEST(Arena, WithoutLeavesSameExtentsAsClaims) {
  constexpr uint64_t kUnit = 4, kUnits = 40;
  std::mt19937_64 draw(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Extent> used;
    for (uint64_t unit = draw() % 3; unit < kUnits;) {
      const uint64_t length = std::min(draw() % 5 + 1, kUnits - unit);
      used.push_back({unit * kUnit, length * kUnit});
      unit += length + draw() % 4;
    }
    std::shuffle(used.begin(), used.end(), draw);
    Arena claimed(kUnits * kUnit, kUnit);
    for (const Extent& extent : used) ASSERT_TRUE(claimed.Claim({&extent, 1}).ok());
    const auto without = Arena::Without(kUnits * kUnit, kUnit, used);
    ASSERT_TRUE(without.ok()) << without.status().message();
    ASSERT_EQ((*without)->free_bytes(), claimed.free_bytes());
    ASSERT_EQ((*without)->bytes(), claimed.bytes());
    const uint64_t all = claimed.free_bytes();
    const auto left = claimed.Take(all), same = (*without)->Take(all);
    ASSERT_EQ(left.ok(), same.ok());
    if (left.ok()) ASSERT_EQ(*left, *same);
  }
  const auto refused = [](std::vector<Extent> used) {
    return Arena::Without(16, 4, std::move(used)).status().code() == Code::kInvalid;
  };
  EXPECT_FALSE(refused({{0, 4}, {4, 12}}));
  EXPECT_TRUE(refused({{4, 8}, {8, 4}})) << "a byte twice";
  EXPECT_TRUE(refused({{8, 12}})) << "beyond the end";
  EXPECT_TRUE(refused({{20, 4}})) << "beyond the end";
  EXPECT_TRUE(refused({{8, ~uint64_t{3}}})) << "a sum that wraps";
  EXPECT_TRUE(refused({{2, 4}})) << "not in units";
  EXPECT_TRUE(refused({{4, 0}})) << "nothing";
}

TEST(Arena, PrefersOneFittingExtentOverSeveral) {
  Arena arena(16, 1);
  const auto a = arena.Take(4), b = arena.Take(1), c = arena.Take(6), d = arena.Take(5);
  arena.Give(*a);
  arena.Give(*c);
  const auto fits = arena.Take(5);
  ASSERT_EQ(fits->size(), 1U);
  EXPECT_EQ((*fits)[0], (Extent{5, 5})) << "the smaller hole is too small";
  EXPECT_EQ(arena.Take(5)->size(), 2U) << "none fits any more";
}

// Claims come from an engine's socket, so they may have any numbers.
TEST(Arena, RejectsInvalidClaimAndTakesNothing) {
  constexpr uint64_t kPage = 4096;
  const std::vector<std::vector<Extent>> bad{
      {{UINT64_MAX - kPage + 1, 2 * kPage}},  // offset + length = 4096
      {{0, UINT64_MAX - kPage + 1}},
      {{kPage, UINT64_MAX - kPage + 1}},
      {{4 * kPage, kPage}},
      {{3 * kPage, 2 * kPage}},
      {{1, kPage}},
      {{0, kPage + 1}},
      {{0, 0}},
      {{0, kPage}, {0, kPage}},
      {{kPage, kPage}, {3 * kPage, kPage}, {0, 3 * kPage}},
      {},
  };
  Arena arena(4 * kPage, kPage);
  for (const auto& extents : bad) {
    EXPECT_EQ(arena.Claim(extents).code(), Code::kInvalid);
    EXPECT_EQ(arena.free_bytes(), 4 * kPage);
    // The free list is intact: all of it can be taken as one run.
    const auto all = arena.Take(4 * kPage);
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ(all->size(), 1U);
    arena.Give(*all);
  }
}

TEST(Occupancy, KeepsRestWhenDroppedRangeCrossesPlacements) {
  Occupancy space(100, 10);
  const auto take = [&](uint64_t at, uint64_t bytes) {
    const Placement placement{at, nullptr, {0, bytes}};
    return space.Take({&placement, 1}).code();
  };
  EXPECT_EQ(take(0, 40), Code::kOk);
  EXPECT_EQ(take(50, 30), Code::kOk);
  space.Drop(30, 30);  // the end of one and the beginning of the next
  EXPECT_EQ(take(20, 20), Code::kInvalid);
  EXPECT_EQ(take(50, 20), Code::kInvalid);
  EXPECT_EQ(take(30, 30), Code::kOk);
  space.Drop(10, 10);  // out of the middle
  EXPECT_EQ(take(0, 10), Code::kInvalid);
  EXPECT_EQ(take(10, 10), Code::kOk);
  space.Drop(0, 100);
  EXPECT_EQ(take(0, 100), Code::kOk);
  EXPECT_EQ(take(100, 10), Code::kInvalid);
}

}  // namespace
}  // namespace tangram::device
