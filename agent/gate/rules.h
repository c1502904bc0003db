// The gate's decisions (docs/architecture.md, section 4.1), as pure functions of events. `gate.h`
// applies them to the page that two processes share; tests/model replays the histories of the Spin
// model and of the driver's simulation through both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "agent/gate/gate_page.h"

namespace tangram {

// A step's vote. `hash` is 0 when no flip is armed.
struct GateVote {
  uint64_t epoch = 0;
  uint64_t hash = 0;
  bool operator==(const GateVote&) const = default;
};

// Events that may change the state of a rank's attempt.
enum class GateEvent : uint8_t {
  kArm,          // agent: the permit
  kWithdraw,     // agent: an abort
  kWord,         // engine: votes in a step
  kUnlatch,      // engine: not all votes were equal, or it declined, or abandoned the step
  kFlip,         // agent: its engine flips
  kFlipByWords,  // agent: the agents exchanged the votes (first layout, repair)
  kFlipStopped,  // agent: after a fence whose outcome is forward
  kReset,        // agent: the flip is retired
  kFence,        // agent: a fence whose outcome is stay, or the engine is gone
};
inline constexpr size_t kGateEvents = 9;

// The next state; nullopt: the event is rejected and no state changes.
std::optional<GateState> GateAfter(GateState state, GateEvent event);

// Whether a step's votes are a go for a rank with the latched vote `mine`. The votes of all members
// of the epoch, never of an active mask, must be present and equal.
bool GateGo(bool latched, GateVote mine, std::span<const GateVote> words, size_t members);

// Whether a rank that abandons its step keeps its vote: it confirmed its KV to the others, so they
// may have flipped on it.
inline bool GateKeepsWord(bool pulled) { return pulled; }

}  // namespace tangram
