// The thread that tells other agents the words of this one's ranks, where no engine steps: the
// first layout, and a repair.
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

  // Begins; then waits for the end of what it did for an attempt before, which was stopped.
  // An error: there is no thread for it.
  Status Start(JobPtr job);
  // Waits for the end of what it does; the job was stopped.
  void Join();

 private:
  void Work(const Job& job);

  Core* const core_;
  Runner* const runner_;
  std::mutex mu_;
  std::jthread thread_;  // under mu_
};

}  // namespace tangram
