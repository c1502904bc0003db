// An attempt that the agent requested this engine to prepare: the next layout and its connections.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/engine/mesh/communicator.h"
#include "agent/engine/turn/side.h"
#include "agent/engine/world/world.h"

namespace tangram::engine {

class Preparation {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    Clock::duration connect;      // time for all connections to be made
    Clock::duration most_paused;  // maximum time of a pause of steps, if requested
  };
  // Starts to connect. Rejects a target that this engine cannot compute, with the reason.
  static Result<Preparation> Begin(const tg_event& event, const tg_model& model, Mesh* mesh,
                                   const Limits& limits, Patience* patience, Clock::time_point now);

  uint64_t attempt() const { return attempt_; }
  uint64_t target_epoch() const { return target_epoch_; }
  const Side& target() const { return target_; }
  bool joins() const { return joins_; }
  bool repair() const { return repair_; }
  // The end of the pause of steps for it; the clock's epoch: no pause.
  Clock::time_point paused_until() const { return paused_until_; }
  void PauseNoMore() { paused_until_ = {}; }
  Communicator& communicator() { return comm_; }

  // Reports to the agent that all connections exist, or that they were not made in time. Once.
  Status Answer(const Mesh& mesh, WorldView* world, Clock::time_point now);
  bool answered() const { return answered_; }

 private:
  uint64_t attempt_ = 0, target_epoch_ = 0;
  bool joins_ = false, repair_ = false, answered_ = false;
  Side target_;
  Communicator comm_;
  std::vector<std::string> peers_;
  Clock::time_point deadline_, paused_until_{};
};

}  // namespace tangram::engine
