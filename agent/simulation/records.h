// The API server's two records of a world, as operator/internal/driver keeps them. All writes are
// compare-and-swap.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tangram::simulation {

using Members = std::vector<std::string>;

struct Fence {
  uint64_t from_epoch = 0, attempt = 0;
  bool forward = false;
  uint64_t epoch = 0;  // of the survivors once they know the outcome
  std::string hash;    // of that layout
  Members survivors, lost;

  // True if it decides from this epoch, so that a later fence may only have fewer survivors.
  bool Of(uint64_t from) const { return from_epoch == from || epoch == from; }
};

struct Membership {
  uint64_t epoch = 0;
  std::string hash;
  Members members;
  std::optional<Fence> fence;
  uint64_t worlds = 0;  // number of abandoned worlds
  Members ended;        // of the abandoned worlds
  uint64_t repair = 0;  // attempt that may flip
};

struct Intent {
  enum class State { kNone, kProposed, kPermitted, kAborted, kDone };
  uint64_t attempt = 0, from_epoch = 0;
  uint64_t last = 0;  // last attempt of its run, which is permitted as a whole; 0: no run
  State state = State::kNone;
};

template <typename Value>
struct Record {
  Value value;
  uint64_t version = 0;
};

struct Records {
  Record<Membership> membership;
  Record<Intent> intent;
};

}  // namespace tangram::simulation
