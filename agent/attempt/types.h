// Plain data of the machine (README.md), with the numbers and names of the wire
// (proto/tangram/v1: Phase, FlipKind, Outcome, Header).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/gate/gate_page.h"

namespace tangram::attempt {

enum class Phase : uint8_t {
  kUnspecified = 0,
  kIdle = 1,
  kPrepared = 2,
  kStaging = 3,
  kStaged = 4,
  kPermitted = 5,
  kFlipped = 6,
  kFailed = 7,
};

enum class Kind : uint8_t {
  kUnspecified = 0,
  kFirst = 1,
  kJoin = 2,
  kLayout = 3,
  kLeave = 4,
  kRepair = 5,
};

enum class Outcome : uint8_t { kUnspecified = 0, kStay = 1, kForward = 2, kHold = 3 };

// Names as on the wire; empty for a value that the wire does not have.
const char* NameOf(Phase phase);
const char* NameOf(Kind kind);

// The target of every call.
struct Header {
  std::string world;
  uint64_t epoch = 0;
  uint64_t attempt = 0;
};

// The plan of an attempt for this agent. A device is a local rank's index in its agent, from 0.
struct Plan {
  struct Part {
    std::string member;
    uint32_t rank = 0;  // its number in the plan
  };

  uint64_t attempt = 0;
  uint64_t run_last = 0;  // last attempt of the run that begins with this one; 0: no run
  Kind kind = Kind::kUnspecified;
  uint64_t from_epoch = 0, target_epoch = 0;
  std::string request_hash, target_hash;
  std::vector<std::string> pods;      // of the target's members, by rank
  std::vector<int32_t> target_ranks;  // by device; -1: not in the target
  std::vector<Part> parts;            // as requested
};

// State of a rank's gate when an event arrived.
struct GateLook {
  GateState state = GateState::kIdle;
  bool stopped = false;
  uint64_t steps = 0;  // complete steps in the active epoch
};
using Gates = std::vector<GateLook>;  // by device

}  // namespace tangram::attempt
