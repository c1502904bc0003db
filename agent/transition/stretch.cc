#include "agent/transition/stretch.h"

#include <algorithm>
#include <utility>

namespace tangram {
namespace {

// Factor of the share after a step that took too long; increment after one that did not.
constexpr double kDown = 0.7, kUp = 0.05;
// If no steps are completed, a rest ends after this multiple of its expected time.
constexpr int kPatience = 4;

}  // namespace

double StretchBound::Share(Nanoseconds now, const Steps& steps) {
  const bool quiet = now - std::exchange(asked_, now) >= kQuiet;
  if (steps.time.count() == 0) return 1;
  if (quiet || plain_.count() == 0) {
    plain_ = steps.usual;
    share_ = 1;
    resting_ = false;
  }
  const bool rest = steps.done % kRound >= kFirst && steps.done % kRound < kFirst + kRest;
  if (rest && !resting_) {
    resting_ = true;
    rest_until_ = now + kPatience * kRest * plain_;
  }
  if (rest && now < rest_until_) return 0;
  if (!rest && std::exchange(resting_, false)) plain_ = steps.time;
  if (std::exchange(done_, steps.done) == steps.done) return share_;
  const double stretch = static_cast<double>(steps.time.count()) / plain_.count() - 1;
  share_ = stretch > most_ ? std::max(kLeast, share_ * kDown) : std::min(1.0, share_ + kUp);
  return share_;
}

}  // namespace tangram
