// The share of its time in which a worker may move bytes, so that engine steps stay within their
// bound.
#pragma once

#include <chrono>
#include <cstdint>

namespace tangram {

// Gets step times and returns a share of time. The share shrinks by a factor if steps take too
// long, and otherwise grows by a constant (additive increase, multiplicative decrease: D. Chiu, R.
// Jain, 1989, "Analysis of the increase and decrease algorithms for congestion avoidance"). The
// plain step time is the mean of many steps before the work. During the work it is measured again
// in steps in which all workers rest. All ranks count the same steps of an epoch, so they rest in
// the same steps. Not thread-safe.
class StretchBound {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  static constexpr double kLeast = 0.1;  // minimum share, so that the work ends
  // In kRest of kRound steps all workers rest, from step kFirst on.
  static constexpr uint64_t kRound = 256, kFirst = 128, kRest = 8;
  // After a pause of this length between calls, the work counts as new.
  static constexpr Nanoseconds kQuiet = std::chrono::seconds(5);

  // most: allowed increase of the step time: 0.25 is a quarter more.
  explicit StretchBound(double most) : most_(most) {}

  struct Steps {
    uint64_t done = 0;     // of the epoch
    Nanoseconds time{0};   // mean of the last few; 0: no work
    Nanoseconds usual{0};  // mean of many
  };
  // In (0, 1]: share of the caller's time. 0: rest, and call again soon.
  double Share(Nanoseconds now, const Steps& steps);

  // For the log.
  Nanoseconds plain() const { return plain_; }
  double share() const { return share_; }

 private:
  const double most_;
  double share_ = 1;
  Nanoseconds asked_{-kQuiet}, plain_{0}, rest_until_{0};  // plain: step time without copies
  uint64_t done_ = 0;
  bool resting_ = false;
};

}  // namespace tangram
