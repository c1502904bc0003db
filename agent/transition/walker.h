// The thread that takes a run from flip to flip, once the first flip has its permit
// (docs/architecture.md, 4.1).
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include "agent/transition/core.h"
#include "agent/transition/runner.h"

namespace tangram {

class Walker {
 public:
  Walker(Core* core, Runner* runner) : core_(core), runner_(runner) {}

  // In a driver call. `first` is prepared and names the later flips. An error: no thread could be
  // started.
  Status Start(JobPtr first);
  // A driver call is about to end the run: ends all waits.
  void Interrupt();

 private:
  void Work(const JobPtr& first, const std::stop_token& stop);
  // Retires `now`, and takes `next` to its permit.
  Status Onward(const Job& now, const JobPtr& next, const std::stop_token& stop);
  // Until `now` has flipped here and may be retired. An error ends the run.
  Status AwaitSteps(const Job& now, const std::stop_token& stop);
  Status AwaitStaged(const Job& next, const std::stop_token& stop);
  // Runs `what` as a driver call; an error if `stop` was requested.
  Status AsCall(const std::stop_token& stop, const std::function<Status()>& what);

  Core* const core_;
  Runner* const runner_;
  std::mutex mu_;
  std::jthread thread_;  // under mu_
};

}  // namespace tangram
