// How much of its time a worker may move bytes, so that steps of the engine get no longer than was
// said.
#pragma once

#include <chrono>
#include <cstdint>

namespace tangram {

// Hears what steps take and gives a share of time: less by a part when they take too long, more by
// a little when they do not (additive increase, multiplicative decrease: D. Chiu, R. Jain, 1989,
// "Analysis of the increase and decrease algorithms for congestion avoidance"). What steps take
// without is what they took before, in the mean of many, and while it lasts that is heard anew in
// some steps in which all rest: every rank counts the same steps of an epoch, so the ranks of a
// world rest in the same ones. Not thread-safe.
class StretchBound {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  static constexpr double kLeast = 0.1;  // of its time: an end is in sight
  // In so many steps all rest in kRest of them, from kFirst on.
  static constexpr uint64_t kRound = 256, kFirst = 128, kRest = 8;
  // Whoever asks again sooner is still at it.
  static constexpr Nanoseconds kQuiet = std::chrono::seconds(5);

  // most: of a step's time, on top of what it takes without: 0.25 is a quarter more.
  explicit StretchBound(double most) : most_(most) {}

  struct Steps {
    uint64_t done = 0;     // of the epoch
    Nanoseconds time{0};   // of one, in the mean of the last few; 0: there is no work
    Nanoseconds usual{0};  // in the mean of many
  };
  // In (0, 1]: of the caller's time. 0: rest, and ask again soon.
  double Share(Nanoseconds now, const Steps& steps);

  // For the log.
  Nanoseconds plain() const { return plain_; }
  double share() const { return share_; }

 private:
  const double most_;
  double share_ = 1;
  Nanoseconds asked_{-kQuiet}, plain_{0}, rest_until_{0};  // plain: what a step takes without
  uint64_t done_ = 0;
  bool resting_ = false;
};

}  // namespace tangram
