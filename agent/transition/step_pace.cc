#include "agent/transition/step_pace.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tangram {
namespace {

// The engine writes the page, so its values are not trusted.
StepPace::Nanoseconds Took(const std::atomic<uint64_t>& ns) {
  constexpr uint64_t kMost = StepPace::Nanoseconds(std::chrono::minutes(1)).count();
  return StepPace::Nanoseconds(std::min(ns.load(std::memory_order_relaxed), kMost));
}

}  // namespace

double StepPace::ShareLocked(Nanoseconds now, const GatePage& page) {
  return bound_.Share(now, {.done = page.steps.load(std::memory_order_relaxed),
                            .time = Took(page.step_ns),
                            .usual = Took(page.usual_step_ns)});
}

double StepPace::Share(Nanoseconds now, const GatePage& page) {
  const std::scoped_lock lock(mu_);
  return ShareLocked(now, page);
}

bool StepPace::MayPull(Nanoseconds now, const GatePage& page) {
  const std::scoped_lock lock(mu_);
  const double share = ShareLocked(now, page);
  if (share <= 0 || now < rest_until_) return false;
  share_ = share;
  return true;
}

void StepPace::Pulled(Nanoseconds now, Nanoseconds took) {
  const std::scoped_lock lock(mu_);
  const double rest = static_cast<double>(took.count()) * (1 / share_ - 1);
  rest_until_ = now + Nanoseconds(static_cast<int64_t>(rest));
}

StepPace::Nanoseconds StepPace::plain() const {
  const std::scoped_lock lock(mu_);
  return bound_.plain();
}

double StepPace::share() const {
  const std::scoped_lock lock(mu_);
  return bound_.share();
}

}  // namespace tangram
