// The gate's decisions (docs/architecture.md, section 4.1), as pure functions of what happened.
// `gate.h` carries them out on the page that two processes share; tests/model replays the histories
// of the Spin model and of the driver's simulation through both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "agent/gate/gate_page.h"

namespace tangram {

// A step's word. `hash` is 0 when no flip is armed.
struct GateVote {
  uint64_t epoch = 0;
  uint64_t hash = 0;
  bool operator==(const GateVote&) const = default;
};

// What may happen to the state of a rank's attempt.
enum class GateEvent : uint8_t {
  kArm,          // agent: the permit
  kWithdraw,     // agent: an abort
  kWord,         // engine: the word is given for a step
  kUnlatch,      // engine: not all words were equal, or it declined, or gave the step up
  kFlip,         // agent: its engine flips
  kFlipByWords,  // agent: the agents exchanged the words (first layout, repair)
  kFlipStopped,  // agent: after a fence whose outcome is forward
  kReset,        // agent: the flip is retired
  kFence,        // agent: a fence whose outcome is stay, or the engine is gone
};
inline constexpr size_t kGateEvents = 9;

// The state that follows, or nothing: the event is refused and nothing changes.
std::optional<GateState> GateAfter(GateState state, GateEvent event);

// Whether a step's words are a go for a rank whose word `mine` is latched: those of all members
// of the epoch, never of an active mask, are there and equal.
bool GateGo(bool latched, GateVote mine, std::span<const GateVote> words, size_t members);

// Whether a rank that gives its step up keeps its word: it told the others that its KV is in
// place, so they may have flipped on it.
inline bool GateKeepsWord(bool pulled) { return pulled; }

}  // namespace tangram
