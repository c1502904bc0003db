// A worker's share of its time, by a simulated clock.
#include "agent/mover/pacer.h"

#include <gtest/gtest.h>

namespace tangram::mover {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

struct Played {
  nanoseconds worked{0}, slept{0};
  double share() const { return static_cast<double>(worked.count()) / (worked + slept).count(); }
};

// Simulates `ranges` ranges, each of which takes a worker `each`.
Played Play(double share, int ranges, nanoseconds each) {
  Played out;
  Pacer pacer([=] { return share; },
              {[&] { return out.worked + out.slept; },
               [&](nanoseconds span, const std::stop_token&) { out.slept += span; }});
  pacer.Begin();
  for (int i = 0; i < ranges; ++i) {
    out.worked += each;
    pacer.Moved({});
  }
  return out;
}

TEST(Pacer, LimitsWorkToTimeShare) {
  for (const double share : {0.05, 0.25, 0.5, 0.9}) {
    for (const nanoseconds each :
         {nanoseconds(1000), nanoseconds(milliseconds(3)), nanoseconds(milliseconds(400))}) {
      const Played played = Play(share, 100000, each);
      EXPECT_NEAR(played.share(), share, share / 100) << share << ", " << each.count() << " ns";
    }
  }
}

TEST(Pacer, AddsUpShortCallsAndIgnoresWaits) {
  nanoseconds worked{0}, waited{0}, slept{0};
  Pacer pacer([] { return 0.5; },
              {[&] { return worked + waited + slept; },
               [&](nanoseconds span, const std::stop_token&) { slept += span; }});
  for (int call = 0; call < 1000; ++call) {
    waited += milliseconds(100);
    pacer.Begin();
    worked += milliseconds(1);
    pacer.Moved({});
  }
  EXPECT_EQ(slept, worked);
}

TEST(Pacer, DoesNotRestAtFullShare) {
  EXPECT_EQ(Play(1, 1000, milliseconds(10)).slept, nanoseconds(0));
}

TEST(Pacer, DoesNotRestWithinFirstSlice) {
  EXPECT_EQ(Play(0.5, 4, milliseconds(1)).slept, nanoseconds(0));
  EXPECT_EQ(Play(0.5, 5, milliseconds(1)).slept, nanoseconds(milliseconds(5)));
}

TEST(Pacer, RestsAtZeroShareUntilShareChanges) {
  nanoseconds worked{0}, slept{0};
  int asked = 0;
  Pacer pacer([&] { return ++asked < 4 ? 0 : 0.5; },
              {[&] { return worked + slept; },
               [&](nanoseconds span, const std::stop_token&) { slept += span; }});
  pacer.Begin();
  worked += milliseconds(10);
  pacer.Moved({});
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(slept, 3 * Pacer::kSlice + milliseconds(10));
}

TEST(Pacer, StopEndsRest) {
  Pacer pacer([] { return 1e-6; });  // a rest of hours
  std::stop_source stop;
  stop.request_stop();
  pacer.Begin();
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < Pacer::kSlice) {
  }
  pacer.Moved(stop.get_token());
}

}  // namespace
}  // namespace tangram::mover
