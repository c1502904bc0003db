// The thread that sends the votes of this agent's ranks to other agents while no engine steps: for
// the first layout, and for a repair.
#pragma once

#include <mutex>
#include <thread>

#include "agent/transition/core.h"
#include "agent/transition/runner.h"

namespace tangram {

// May be called from any thread.
class Words {
 public:
  Words(Core* core, Runner* runner) : core_(core), runner_(runner) {}

  // Starts the thread, then waits for the previous one, whose job was stopped. An error: no thread
  // could be started.
  Status Start(JobPtr job);
  // Waits for the thread; its job was stopped.
  void Join();

 private:
  void Work(const Job& job);

  Core* const core_;
  Runner* const runner_;
  std::mutex mu_;
  std::jthread thread_;  // under mu_
};

}  // namespace tangram
