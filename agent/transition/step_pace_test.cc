// Pulls of KV ahead during steps, with a simulated clock.
#include "agent/transition/step_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace tangram {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// An engine that requests a pull at each boundary without an open one. During a pull its steps take
// longer by `cost`.
struct Beside {
  explicit Beside(double most) {
    if (most > 0) pace = std::make_unique<StepPace>(most);
    page->usual_step_ns = Count(plain);
    page->step_ns = Count(plain);
  }
  static uint64_t Count(nanoseconds time) { return static_cast<uint64_t>(time.count()); }

  void Play(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (until && *until <= now) {
        if (pace) pace->Pulled(*until, took);
        until.reset();
        ++pulls;
      }
      if (!until && (!pace || pace->MayPull(now, *page))) {
        until = now + took;
        const uint64_t in_round = page->steps % StretchBound::kRound;
        in_rests += in_round >= StretchBound::kFirst &&
                            in_round < StretchBound::kFirst + StretchBound::kRest
                        ? 1
                        : 0;
      }
      const auto busy = until ? std::min(*until - now, plain) : nanoseconds(0);
      const auto time = plain + nanoseconds(static_cast<int64_t>(cost * busy.count()));
      now += time;
      all += time;
      ++page->steps;
      page->step_ns = page->step_ns - page->step_ns / 4 + Count(time) / 4;
    }
  }
  double Stretch(int steps) const {
    return static_cast<double>(all.count()) / (plain.count() * steps) - 1;
  }

  std::unique_ptr<StepPace> pace;
  std::unique_ptr<GatePage> page{new GatePage{}};
  nanoseconds plain = milliseconds(20), took = milliseconds(16), now = milliseconds(1), all{0};
  std::optional<nanoseconds> until;
  double cost = 1;
  int pulls = 0, in_rests = 0;
};

TEST(StepPace, KeepsStepTimesWithinBound) {
  Beside free(0);
  free.Play(1000);
  EXPECT_NEAR(free.Stretch(1000), .8, .01) << "one at each boundary";
  for (const double most : {.1, .25, .5}) {
    Beside bound(most);
    bound.Play(100);  // until the share settles
    bound.all = nanoseconds(0);
    const int before = bound.pulls;
    bound.Play(1000);
    EXPECT_LT(bound.Stretch(1000), most + .1) << most;
    EXPECT_GT(bound.pulls - before, 50) << "and it goes on";
    EXPECT_EQ(bound.in_rests, 0) << "what steps take without is heard";
  }
}

TEST(StepPace, AllowsCheapPullAtEachBoundary) {
  Beside bound(.25);
  bound.cost = .1;
  bound.Play(100);
  EXPECT_GE(bound.pulls, 98);
}

// A pull that took a second at a share of a tenth rests for nine seconds. Requests meanwhile are
// deferred.
TEST(StepPace, ScalesRestWithPullTime) {
  StepPace pace(.25);
  const auto page = std::make_unique<GatePage>();
  page->usual_step_ns = Beside::Count(milliseconds(20));
  page->step_ns = Beside::Count(milliseconds(40));
  nanoseconds now = milliseconds(1);
  for (int i = 0; i < 20; ++i) {
    now += milliseconds(40);
    ++page->steps;
    pace.Share(now, *page);
  }
  ASSERT_TRUE(pace.MayPull(now, *page));
  now += milliseconds(100);
  pace.Pulled(now, milliseconds(100));
  EXPECT_FALSE(pace.MayPull(now + milliseconds(899), *page));
  EXPECT_TRUE(pace.MayPull(now + milliseconds(901), *page));
}

}  // namespace
}  // namespace tangram
