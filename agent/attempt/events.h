// Events of an attempt (README.md): first the calls and reports of others, then the results of our
// own actions (actions.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/attempt/types.h"
#include "agent/base/status.h"

namespace tangram::attempt {

// From the driver, one at a time: the next call starts after the reply to the previous one.
struct Prepare {
  Header header;
  Kind kind = Kind::kUnspecified;
  uint64_t target_epoch = 0;
  std::string request_hash;
  Status geometry;      // whether the plan fits this agent's model
  bool by_run = false;  // sent by the run (run.cc), not by the driver
};
struct Stage {
  Header header;
};
struct Permit {
  Header header;
  bool by_run = false;
};
struct Abort {
  Header header;
  std::string reason;
};
struct Retire {
  Header header;
  bool by_run = false;
};
struct Resolve {  // after a fence; kHold: before it
  Header header;
  Outcome outcome = Outcome::kUnspecified;
  std::vector<std::string> lost;  // members that the fence removed
  std::string reason;
};
struct Release {
  Header header;
  std::vector<std::string> members;
  bool world_ends = false;  // release all members
  std::string reason;
};

// From other agents: the votes of their ranks. `pod` is the caller's.
struct Word {
  Header header;
  std::string target_hash;
  std::vector<uint32_t> ranks;
  std::string pod;
};

// From the engine of a device.
struct EngineFlip {
  Header header;
  uint32_t device = 0;
  std::string target_hash;
};
struct EngineGone {
  uint32_t device = 0;
};
struct EngineCame {
  uint32_t device = 0;
};
// The engine survived its agent and kept the rank's memory.
struct Resumed {
  uint32_t device = 0;
  std::string member;
  int32_t rank = -1;   // in the layout that it kept; -1: none
  uint64_t epoch = 0;  // of that layout
  uint64_t attempt = 0;
};

// From our own work outside calls.
struct Staged {
  uint64_t attempt = 0;
  Status status;
};
struct RunStuck {  // the run cannot continue here; `attempt` is one of its attempts
  uint64_t attempt = 0;
  std::string why;
};
struct PermitSeen {  // another agent has the permit, and the driver sends no call
  uint64_t attempt = 0;
};
struct WordsOut {  // the votes of our ranks are being sent to the other agents
  uint64_t attempt = 0;
};

// Results of actions.
struct Built {
  Plan plan;
};
struct Reserved {
  uint64_t attempt = 0;
  Status status;
};
struct Begun {  // of StartStaging and TellWords
  uint64_t attempt = 0;
};
struct Armed {
  uint64_t attempt = 0;
  bool forward = false;
  Status status;
};
enum class By : uint8_t {
  kEngine,   // an engine's request after its go
  kWords,    // the agents exchanged votes
  kPeer,     // by votes; that another agent flipped proves the missing ones
  kForward,  // a fence
};
struct Committed {
  uint64_t attempt = 0;
  std::vector<uint32_t> devices;  // as requested
  size_t done = 0;                // number of devices that committed
  By by = By::kEngine;
  Status status;                // of the first device that did not commit
  std::set<uint32_t> attached;  // devices that have an engine
};
struct GateFlipped {
  uint64_t attempt = 0;
  uint32_t device = 0;
  By by = By::kEngine;
  Status status;
};
struct TakenBack {
  uint64_t attempt = 0;
  bool all = false;  // false: of none
};
enum class Say : uint8_t {
  kNothing,
  kBurned,   // one aborted without a flip: a fence (docs/architecture.md, 4.1, rule 2)
  kFlipped,  // one flipped, so every rank voted
};
struct PeersSaid {
  uint64_t attempt = 0;
  Say say = Say::kNothing;
  std::set<uint32_t> gone;  // devices whose engine is not the one that prepared; set with kBurned
  bool expired = false;     // the abort has waited for its maximum time
};
struct Dropped {
  uint64_t attempt = 0;
};
struct Kept {
  uint64_t attempt = 0;
};
struct Returned {
  uint64_t attempt = 0;
  Status status;
};
struct Dismissed {
  uint32_t device = 0;
};
struct Emptied {
  uint32_t device = 0;
};

using Event =
    std::variant<Prepare, Stage, Permit, Abort, Retire, Resolve, Release, Word, EngineFlip,
                 EngineGone, EngineCame, Resumed, Staged, RunStuck, PermitSeen, WordsOut, Built,
                 Reserved, Begun, Armed, Committed, GateFlipped, TakenBack, PeersSaid, Dropped,
                 Kept, Returned, Dismissed, Emptied>;

}  // namespace tangram::attempt
