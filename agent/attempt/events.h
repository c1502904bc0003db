// What may happen to an attempt (README.md). First what others want or report, then what
// follows from an action of ours (actions.h) and comes back when it is done.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/attempt/types.h"
#include "agent/base/status.h"

namespace tangram::attempt {

// From the driver, one at a time: the next comes when the one before is answered.
struct Prepare {
  Header header;
  Kind kind = Kind::kUnspecified;
  uint64_t target_epoch = 0;
  std::string request_hash;
  Status geometry;      // whether the plan is for this agent's model
  bool by_run = false;  // not the driver's: the run goes on (run.cc)
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
struct Resolve {  // after a fence; or before it, to hold
  Header header;
  Outcome outcome = Outcome::kUnspecified;
  std::vector<std::string> lost;  // members that the fence left out
  std::string reason;
};
struct Release {
  Header header;
  std::vector<std::string> members;
  bool world_ends = false;  // all of them
  std::string reason;
};

// From other agents: the words of their ranks. `pod` is the caller's.
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
// It lived on when its agent died, and brought the rank along.
struct Resumed {
  uint32_t device = 0;
  std::string member;
  int32_t rank = -1;   // in the layout that it brought; -1: none
  uint64_t epoch = 0;  // of that
  uint64_t attempt = 0;
};

// From our own work beside the calls.
struct Staged {
  uint64_t attempt = 0;
  Status status;
};
struct RunStuck {  // it cannot go on from here; `attempt` is one of it
  uint64_t attempt = 0;
  std::string why;
};
struct PermitSeen {  // another agent has it, and the driver is silent
  uint64_t attempt = 0;
};
struct WordsOut {  // those of our ranks are on their way to the other agents
  uint64_t attempt = 0;
};

// Ends of actions.
struct Built {
  Plan plan;
};
struct Reserved {
  uint64_t attempt = 0;
  Status status;
};
struct Begun {  // StartStaging, TellWords
  uint64_t attempt = 0;
};
struct Armed {
  uint64_t attempt = 0;
  bool forward = false;
  Status status;
};
enum class By : uint8_t {
  kEngine,   // its go
  kWords,    // the agents exchanged them
  kPeer,     // words again, and the last of them is that another agent flipped
  kForward,  // a fence
};
struct Committed {
  uint64_t attempt = 0;
  std::vector<uint32_t> devices;  // as asked for
  size_t done = 0;                // so many of them did
  By by = By::kEngine;
  Status status;                // of the next one, which did not
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
  bool all = false;  // else none
};
enum class Say : uint8_t {
  kNothing,
  kBurned,   // one gave the attempt up without a flip: a fence (docs/architecture.md, 4.1, rule 2)
  kFlipped,  // one flipped: so every word was given
};
struct PeersSaid {
  uint64_t attempt = 0;
  Say say = Say::kNothing;
  std::set<uint32_t> gone;  // devices whose engine is not the one that prepared; told with kBurned
  bool expired = false;     // the abort has waited for as long as it may
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
