// The bound on what bytes may take of an engine's steps (StretchBound), for all that moves bytes
// for its rank: workers that stage weights, and pulls of KV ahead.
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

  // As StretchBound::Share, of the steps that the engine tells of in its page.
  double Share(Nanoseconds now, const GatePage& page);

  // Whether KV may go ahead now. A pull is one piece of work that nothing holds up on its way, so
  // the rest that its share asks for comes before the next one.
  bool MayPull(Nanoseconds now, const GatePage& page);
  // One has ended.
  void Pulled(Nanoseconds now, Nanoseconds took);

  // For the log.
  Nanoseconds plain() const;
  double share() const;

 private:
  double ShareLocked(Nanoseconds now, const GatePage& page);

  mutable std::mutex mu_;
  StretchBound bound_;
  double share_ = 1;  // of the pull that may be under way
  Nanoseconds rest_until_{0};
};

}  // namespace tangram
