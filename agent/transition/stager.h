// The thread that brings an attempt's pieces, then looks after its permit.
#pragma once

#include <functional>
#include <stop_token>
#include <thread>

#include "agent/transition/core.h"
#include "agent/transition/runner.h"

namespace tangram {

// Start and Join are of driver calls, which exclude each other.
class Stager {
 public:
  Stager(Core* core, Runner* runner) : core_(core), runner_(runner) {}

  // Begins; then waits for the end of what it did for an attempt before, which was stopped.
  // Waits for the one before. An error: there is no thread for it.
  Status Start(JobPtr job);
  // Waits for the end of what it does; the job was stopped.
  void Join();

 private:
  void Work(const JobPtr& job);
  Status StageAll(Job* job);
  Status StagePart(Job* job, uint32_t device);
  void AwaitPermit(const Job& job);
  // How much of its time a worker may bring bytes of the job for a rank; none: all.
  std::function<double()> ShareOf(const Job& job, uint32_t device);

  Core* const core_;
  Runner* const runner_;
  std::jthread thread_;
};

}  // namespace tangram
