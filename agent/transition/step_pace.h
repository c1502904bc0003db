// The bound on an engine's step times (StretchBound) for all copies to its rank: workers that stage
// weights, and pulls of KV ahead.
#pragma once

#include <chrono>
#include <mutex>

#include "agent/gate/gate_page.h"
#include "agent/transition/stretch.h"

namespace tangram {

// Thread-safe.
class StepPace {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  explicit StepPace(double most) : bound_(most) {}

  // As StretchBound::Share, with the step times of the engine's page.
  double Share(Nanoseconds now, const GatePage& page);

  // Whether KV may be pulled ahead now. A pull cannot be paced while it runs, so the rest for its
  // share comes before the next pull.
  bool MayPull(Nanoseconds now, const GatePage& page);
  // A pull has ended.
  void Pulled(Nanoseconds now, Nanoseconds took);

  // For the log.
  Nanoseconds plain() const;
  double share() const;

 private:
  double ShareLocked(Nanoseconds now, const GatePage& page);

  mutable std::mutex mu_;
  StretchBound bound_;
  double share_ = 1;  // of the last pull
  Nanoseconds rest_until_{0};
};

}  // namespace tangram
