// The API server's two records of a world, as operator/internal/driver keeps them: written by
// compare-and-swap alone.
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
  uint64_t epoch = 0;  // that the survivors stand on once they know the outcome
  std::string hash;    // of that layout
  Members survivors, lost;

  // Decided from this epoch, so that a later one may only have fewer survivors.
  bool Of(uint64_t from) const { return from_epoch == from || epoch == from; }
};

struct Membership {
  uint64_t epoch = 0;
  std::string hash;
  Members members;
  std::optional<Fence> fence;
  uint64_t worlds = 0;  // that were given up
  Members ended;        // of those
  uint64_t repair = 0;  // attempt that may flip
};

struct Intent {
  enum class State { kNone, kProposed, kPermitted, kAborted, kDone };
  uint64_t attempt = 0, from_epoch = 0;
  uint64_t last = 0;  // attempt of its run, all of which it permits; 0: there is none
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
