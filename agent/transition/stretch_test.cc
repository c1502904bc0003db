// The bound on step times, with a simulated clock.
#include "agent/transition/stretch.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tangram {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A world whose steps take `plain`, longer by `cost` of it if a worker has all its time.
struct World {
  explicit World(double most) : bound(most) {}

  // Runs this number of steps; a worker requests its share four times in each.
  void Play(int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto time = nanoseconds(static_cast<int64_t>(plain.count() * (1 + cost * share)));
      mean = mean.count() == 0 ? time : mean + time / 4 - mean / 4;
      ++done;
      double sum = 0;
      for (int ask = 0; ask < 4; ++ask) {
        now += time / 4;
        share = bound.Share(now, {done, mean, plain});
        sum += share;
      }
      worst = std::max(worst, static_cast<double>(mean.count()) / plain.count() - 1);
      shares += sum / 4;
    }
  }

  StretchBound bound;
  nanoseconds plain = milliseconds(20), now{0}, mean{0};
  double cost = 1, share = 0, worst = 0, shares = 0;
  uint64_t done = 0;
};

TEST(StretchBound, KeepsStepTimesWithinBound) {
  for (const double most : {0.1, 0.25, 0.5}) {
    World world(most);
    world.mean = world.plain;
    world.Play(40);  // until the share settles
    world.worst = world.shares = 0;
    world.Play(60);
    EXPECT_LT(world.worst, most + 0.25) << most;
    EXPECT_NEAR(world.shares / 60, most, most) << most;
  }
}

TEST(StretchBound, DoesNotSlowCheapWork) {
  World world(0.25);
  world.mean = world.plain;
  world.cost = 0.1;
  world.Play(100);
  EXPECT_EQ(world.share, 1);
}

TEST(StretchBound, KeepsMinimumShare) {
  World world(0.01);
  world.mean = world.plain;
  world.cost = 5;
  world.Play(100);
  EXPECT_EQ(world.share, StretchBound::kLeast);
}

TEST(StretchBound, GivesFullShareWithoutWork) {
  StretchBound bound(0.01);
  EXPECT_EQ(bound.Share(milliseconds(1), {1, milliseconds(10), milliseconds(10)}), 1);
  EXPECT_LT(bound.Share(milliseconds(2), {2, milliseconds(100), milliseconds(10)}), 1);
  EXPECT_EQ(bound.Share(milliseconds(3), {3, nanoseconds(0), milliseconds(10)}), 1);
}

// Requests arrived: steps take longer, and copies are not the cause.
TEST(StretchBound, RemeasuresBaselineDuringRest) {
  World world(0.25);
  world.mean = world.plain;
  world.cost = 0.1;
  world.Play(20);
  world.plain *= 2;
  world.Play(20);
  EXPECT_LT(world.share, 0.2);
  world.Play(StretchBound::kFirst + 1 - 40);
  EXPECT_EQ(world.share, 0) << "all rest";
  world.Play(StretchBound::kRest + 40);
  EXPECT_EQ(world.share, 1);
}

TEST(StretchBound, EndsRestWhenWorldStopped) {
  World world(0.25);
  world.mean = world.plain;
  world.Play(StretchBound::kFirst);
  ASSERT_EQ(world.share, 0);
  for (int i = 0; i < 40; ++i) {
    world.now += world.plain;
    world.share = world.bound.Share(world.now, {world.done, world.mean, world.plain});
  }
  EXPECT_GT(world.share, 0);
}

}  // namespace
}  // namespace tangram
