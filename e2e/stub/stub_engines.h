// Engines that compute nothing: all of a world's ranks in one process and one thread. They step
// together, give their words, flip, join, leave and stand still when one of them goes, by the
// client library as every engine does; between them there is no network.
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

// Result of a turn.
enum class Turned {
  kIdle,     // no layout is active, or not all of its ranks are there
  kStepped,  // all ranks computed a step
  kPaused,   // all ranks exchanged votes, and an attempt wants no step computed
  kFlipped,  // all ranks are in the next layout, and compute the step there
};

class StubEngines {
 public:
  ~StubEngines();
  // Attaches the pod's ranks. Waits for its agent, up to a minute; false: why is told on stderr.
  bool Attach(const Pod& pod);
  // One turn of all: events of the agents, then a step of the world if all of its ranks are there.
  Turned Turn();
  // Steps of the world so far.
  uint64_t steps() const { return steps_; }

 private:
  struct Engine {
    std::string name;
    tg_client* client = nullptr;   // nullptr: its agent is gone
    bool joins = false;            // prepared to join, and not in a layout yet
    uint64_t stood_still = 0;      // the epoch in which it gave a step up last
    std::vector<uint64_t> pauses;  // prepared attempts that want no step computed, in order
  };

  void Poll(Engine* engine);
  // The engines of the newest layout by rank; none: it is gone, or not in that layout yet.
  std::vector<Engine*> Members();
  // The ranks of the layout whose engine is gone for good.
  std::vector<uint32_t> Gone(const std::vector<Engine*>& members) const;
  Turned Step(const std::vector<Engine*>& members);
  void Flip(const std::vector<Engine*>& members);
  // Nobody can step: all living give the step up and say who is gone.
  static void StandStill(const std::vector<Engine*>& members, const std::vector<uint32_t>& gone);

  std::vector<Engine> engines_;
  uint64_t steps_ = 0;
};

}  // namespace tangram::stub
