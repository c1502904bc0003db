#include "agent/gate/rules.h"

#include <algorithm>

namespace tangram {

std::optional<GateState> GateAfter(GateState state, GateEvent event) {
  switch (event) {
    case GateEvent::kArm:
      if (state == GateState::kIdle) return GateState::kArmed;
      break;
    case GateEvent::kWithdraw:  // never a latched one: the engine has voted
      if (state == GateState::kArmed) return GateState::kIdle;
      break;
    case GateEvent::kWord:
      if (state == GateState::kArmed || state == GateState::kLatched) return GateState::kLatched;
      break;
    case GateEvent::kUnlatch:
      if (state == GateState::kLatched) return GateState::kArmed;
      break;
    case GateEvent::kFlip:
      if (state == GateState::kLatched) return GateState::kFlipped;
      break;
    case GateEvent::kFlipByWords:
      if (state == GateState::kArmed) return GateState::kFlipped;
      break;
    case GateEvent::kFlipStopped:  // whether it kept its vote or not: another rank flipped
      if (state == GateState::kArmed || state == GateState::kLatched) return GateState::kFlipped;
      break;
    case GateEvent::kReset:
      if (state == GateState::kFlipped) return GateState::kIdle;
      break;
    case GateEvent::kFence:
      return GateState::kIdle;
  }
  return std::nullopt;
}

bool GateGo(bool latched, GateVote mine, std::span<const GateVote> words, size_t members) {
  return latched && members > 0 && words.size() == members &&
         std::all_of(words.begin(), words.end(), [&](GateVote word) { return word == mine; });
}

}  // namespace tangram
