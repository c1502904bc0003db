// The thread that stages an attempt's pieces, then queries peers for its permit.
#pragma once

#include <functional>
#include <stop_token>
#include <thread>

#include "agent/transition/core.h"
#include "agent/transition/runner.h"

namespace tangram {

// Only driver calls use Start and Join, and they exclude each other.
class Stager {
 public:
  Stager(Core* core, Runner* runner) : core_(core), runner_(runner) {}

  // Starts the thread, then waits for the previous one, whose job was stopped. An error: no thread
  // could be started.
  Status Start(JobPtr job);
  // Waits for the thread; its job was stopped.
  void Join();

 private:
  void Work(const JobPtr& job);
  Status StageAll(Job* job);
  Status StagePart(Job* job, uint32_t device);
  void AwaitPermit(const Job& job);
  // The share of its time in which a worker may copy bytes of the job to a rank; none: all.
  std::function<double()> ShareOf(const Job& job, uint32_t device);

  Core* const core_;
  Runner* const runner_;
  std::jthread thread_;
};

}  // namespace tangram
