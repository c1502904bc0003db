// Engines that compute nothing: all ranks of a world in one process and one thread. Through the
// client library, like every engine, they step together, vote, flip, join, leave, and stop when one
// of them dies; they exchange votes without a network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/client/include/tangram/client.h"

namespace tangram::stub {

// A pod's socket and the token for it.
struct Pod {
  std::string socket, token_file;
  uint32_t ranks = 0;
};

// Result of Turn.
enum class Turned {
  kIdle,     // no layout is active, or not all of its ranks are attached
  kStepped,  // all ranks computed a step
  kPaused,   // all ranks exchanged votes, and an attempt pauses steps
  kFlipped,  // all ranks are in the next layout, and compute the step there
};

class StubEngines {
 public:
  ~StubEngines();
  // Attaches the pod's ranks. Waits up to a minute for its agent; false: the reason is on stderr.
  bool Attach(const Pod& pod);
  // One round: events of the agents, then a step of the world if all of its ranks are attached.
  Turned Turn();
  // Steps of the world so far.
  uint64_t steps() const { return steps_; }

 private:
  struct Engine {
    std::string name;
    tg_client* client = nullptr;   // nullptr: its agent is gone
    bool joins = false;            // prepared to join, and not in a layout yet
    uint64_t stood_still = 0;      // the epoch of the last step that it abandoned
    std::vector<uint64_t> pauses;  // prepared attempts that pause steps, in order
  };

  void Poll(Engine* engine);
  // The engines of the newest layout by rank; nullptr: it is gone, or not in that layout yet.
  std::vector<Engine*> Members();
  // The ranks of the layout whose engine is gone for good.
  std::vector<uint32_t> Gone(const std::vector<Engine*>& members) const;
  Turned Step(const std::vector<Engine*>& members);
  void Flip(const std::vector<Engine*>& members);
  // A step is impossible: all live engines abandon it and report the missing ranks.
  static void StandStill(const std::vector<Engine*>& members, const std::vector<uint32_t>& gone);

  std::vector<Engine> engines_;
  uint64_t steps_ = 0;
};

}  // namespace tangram::stub
