#include "agent/engine/mesh/patience.h"

#include <gtest/gtest.h>

#include <random>

namespace tangram::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Duration = Patience::Duration;

TEST(PatienceTest, UsesMaximumUntilSamplesSuffice) {
  Patience patience({});
  EXPECT_EQ(patience.Limit(8), seconds(10));
  for (int i = 0; i < 63; ++i) patience.Learn(8, milliseconds(2));
  EXPECT_EQ(patience.Limit(8), seconds(10));
  patience.Learn(8, milliseconds(2));
  EXPECT_EQ(patience.Limit(8), seconds(1)) << "the least";
}

// A flip, the first step of an epoch: once the duration of steps is known here, no rank waits for
// the maximum.
TEST(PatienceTest, UsesSeparateTimeoutForWorkWithoutSize) {
  Patience patience({});
  EXPECT_EQ(patience.Limit(std::nullopt), seconds(10)) << "nothing is known yet";
  for (int i = 0; i < 64; ++i) patience.Learn(8, milliseconds(2));
  EXPECT_EQ(patience.Limit(std::nullopt), seconds(5));
  for (int i = 0; i < 64; ++i) patience.Learn(4000, milliseconds(900));
  EXPECT_GE(patience.Limit(std::nullopt), patience.Limit(4000)) << "where steps are longer";
  EXPECT_GT(patience.Limit(std::nullopt), seconds(7));
  Patience hasty({.most = seconds(3)});
  for (int i = 0; i < 64; ++i) hasty.Learn(8, milliseconds(2));
  EXPECT_EQ(hasty.Limit(std::nullopt), seconds(3)) << "the most is the most";
}

TEST(PatienceTest, AllowsLongerTimeoutForLongerSteps) {
  Patience patience({});
  for (int i = 0; i < 200; ++i) {
    patience.Learn(8, milliseconds(40));
    patience.Learn(4000, milliseconds(500));
  }
  EXPECT_EQ(patience.Limit(8), seconds(1));
  EXPECT_EQ(patience.Limit(15), seconds(1)) << "of the same order";
  EXPECT_GE(patience.Limit(4000), seconds(4));
  EXPECT_LE(patience.Limit(4000), milliseconds(4800)) << "bins are a quarter of an octave";
}

// A world whose load grows meets new sizes while it serves. A rank that hangs in such a step must
// not be waited for as if no step were known.
TEST(PatienceTest, EstimatesUnseenSizeFromNeighbours) {
  Patience patience({});
  for (int i = 0; i < 64; ++i) patience.Learn(8, milliseconds(40));
  EXPECT_EQ(patience.Limit(16), seconds(2)) << "twice the least";
  EXPECT_GE(patience.Limit(100), milliseconds(40 * 8 * 8)) << "eight times the rows at most";
  EXPECT_LE(patience.Limit(100), milliseconds(48 * 8 * 8));
  EXPECT_EQ(patience.Limit(100000), seconds(10)) << "the most is the most";
  EXPECT_EQ(patience.Limit(1), seconds(2)) << "fewer rows do not take longer";
  for (int i = 0; i < 64; ++i) patience.Learn(4000, milliseconds(100));
  EXPECT_EQ(patience.Limit(600), seconds(2)) << "less than a known size that has more rows";
}

TEST(PatienceTest, NeverExceedsMaximum) {
  Patience patience({.least = milliseconds(200), .most = milliseconds(3000)});
  for (int i = 0; i < 200; ++i) patience.Learn(1, seconds(2));
  EXPECT_EQ(patience.Limit(1), seconds(3));
}

TEST(PatienceTest, IgnoresRarePauses) {
  Patience patience({});
  for (int i = 0; i < 10000; ++i) patience.Learn(8, i % 500 == 0 ? seconds(4) : milliseconds(3));
  EXPECT_EQ(patience.Limit(8), seconds(1));
}

TEST(PatienceTest, ForgetsOldSamples) {
  Patience patience({});
  for (int i = 0; i < 4000; ++i) patience.Learn(8, milliseconds(800));
  EXPECT_GT(patience.Limit(8), seconds(6));
  for (int i = 0; i < 40000; ++i) patience.Learn(8, milliseconds(3));
  EXPECT_EQ(patience.Limit(8), seconds(1));
}

class WaitTest : public ::testing::Test {
 protected:
  // Polls at the interval that the mesh uses.
  void Pass(Duration time) {
    for (const Wait::Clock::time_point end = now_ + time; now_ < end;) {
      now_ += Wait::kLook;
      wait_.Look(now_);
    }
  }
  Wait::Clock::time_point now_{};
  Wait wait_{2, seconds(1), milliseconds(250), now_};
};

TEST_F(WaitTest, TimesOutPeerWithoutMessages) {
  Pass(milliseconds(500));
  wait_.Heard(0);
  Pass(milliseconds(450));
  EXPECT_FALSE(wait_.Silent(0));
  EXPECT_FALSE(wait_.Silent(1));
  Pass(milliseconds(50));
  EXPECT_FALSE(wait_.Silent(0));
  EXPECT_TRUE(wait_.Silent(1));
}

TEST_F(WaitTest, DoesNotCountPausesOfThisProcess) {
  for (int pause = 0; pause < 8; ++pause) {
    now_ += seconds(10);
    wait_.Look(now_);
  }
  EXPECT_FALSE(wait_.Silent(0));
  EXPECT_EQ(wait_.ran(), 8 * Wait::kCounts);
  Pass(milliseconds(200));
  EXPECT_TRUE(wait_.Silent(0)) << "while it runs, time counts";
}

TEST_F(WaitTest, IgnoresClockGoingBackwards) {
  wait_.Look(now_ - seconds(5));
  EXPECT_EQ(wait_.ran(), Duration(0));
}

TEST_F(WaitTest, SchedulesOneHeartbeatPerPeriod) {
  int beats = 0;
  for (int look = 0; look < 40; ++look) {
    Pass(Wait::kLook);
    beats += wait_.BeatDue() ? 1 : 0;
  }
  EXPECT_EQ(beats, 4);
}

// Log-normal steps of six ranks: an hour of them in bench `false-alarm`, here a minute.
TEST(PatienceTest, DoesNotTimeOutVaryingSteps) {
  std::mt19937_64 draw(1);
  Patience patience({});
  std::lognormal_distribution<double> step(std::log(20e6), 0.6);  // ns
  for (double passed = 0; passed < 60e9;) {
    double slowest = 0;
    for (int rank = 0; rank < 6; ++rank) slowest = std::max(slowest, step(draw));
    const Duration took(static_cast<int64_t>(slowest));
    ASSERT_LT(took, patience.Limit(30));
    patience.Learn(30, took);
    passed += slowest;
  }
  EXPECT_LT(patience.Limit(30), seconds(2)) << "it is seen all the same";
}

}  // namespace
}  // namespace tangram::engine
