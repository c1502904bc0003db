// The control page that an agent and its engine share: the gate's state, step
// counters, the engine's figures. One memfd, mapped by both for reading and writing.
#pragma once

#include <atomic>
#include <cstdint>

namespace tangram {

// state = attempt << 3 | GateState. Allowed changes:
//   agent : Idle -> Armed (permit), Armed -> Idle (abort), Flipped -> Idle (retire)
//   engine: Armed -> Latched (vote), Latched -> Armed (stay, decline)
//   agent : Latched -> Flipped, on the engine's EngineFlip; Armed -> Flipped only when
//           the agents run the gate themselves (first layout)
// While Latched the agent cannot withdraw: the engine has voted (architecture 4.1, rule 2).
enum class GateState : uint64_t { kIdle = 0, kArmed = 1, kLatched = 2, kFlipped = 3 };

constexpr uint64_t GateWordOf(uint64_t attempt, GateState state) {
  return attempt << 3 | static_cast<uint64_t>(state);
}
constexpr GateState GateStateOf(uint64_t word) { return static_cast<GateState>(word & 7); }
constexpr uint64_t GateAttemptOf(uint64_t word) { return word >> 3; }

// A lost rank because of which a step was abandoned. Cause and operation are tg_cause and tg_doing
// of the client library's header; the layer is an ordinal among those with experts.
struct GateMissed {
  uint32_t rank = 0, cause = 0, doing = 0, layer = 0;
  bool operator==(const GateMissed&) const = default;
};

struct GatePage {
  static constexpr uint64_t kMagic = 0x54474741'54450007;  // "TGGATE", version 7
  static constexpr uint32_t kReachable = 8192;             // ranks of the largest world
  static constexpr uint32_t kMissed = 8, kCauses = 7, kDoings = 6;

  uint64_t magic;
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> epoch;         // the active epoch; written by the agent
  std::atomic<uint64_t> target_epoch;  // written before Armed
  uint8_t target_hash[32];             // written before Armed
  std::atomic<uint64_t> steps;  // whole steps in `epoch`; engine adds, agent zeroes at a flip
  std::atomic<uint64_t> kv_pages, kv_free_pages, kv_reserved_tokens, running, waiting;
  std::atomic<uint64_t> declined;  // number of the engine's declines after GO
  char decline_reason[256];
  // 1: a step was abandoned for good; set by the engine, or by the agent whose engine ended. Only
  // the agent clears it, when a flip by the agents lets the rank continue.
  std::atomic<uint64_t> stopped;
  std::atomic<uint64_t> unreachable[kReachable / 64];  // while stopped: bit = rank of the layout
  // While stopped: rank | cause << 16 | doing << 24 | layer << 32; 0: none. And the number of times
  // of each cause in each doing, never reset.
  std::atomic<uint64_t> missed[kMissed];
  std::atomic<uint64_t> missed_total[kCauses][kDoings];
  std::atomic<uint64_t> turns;  // the engine's polls; an unresponsive engine makes none
  // Nanoseconds from one step to the next, as the mean of the last few, and of the last hundred or
  // so; the engine's library writes them. step_ns 0: the last one had no work.
  std::atomic<uint64_t> step_ns, usual_step_ns;
  uint32_t moe_layers, experts;
  // Followed by std::atomic<uint64_t> tokens[2][moe_layers][experts]: routed, executed.
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Tokens of an expert that a rank routed, as their source, and that it executed with its piece.
enum class TokenCount : uint32_t { kRouted = 0, kExecuted = 1 };

inline uint64_t GatePageBytes(uint32_t moe_layers, uint32_t experts) {
  return sizeof(GatePage) + 2 * sizeof(uint64_t) * moe_layers * experts;
}

// [moe_layers * experts]. Agent and engine know the model's size themselves, not from the page.
inline std::atomic<uint64_t>* GateCounters(GatePage* page, TokenCount what, uint32_t moe_layers,
                                           uint32_t experts) {
  return reinterpret_cast<std::atomic<uint64_t>*>(page + 1) +
         (what == TokenCount::kExecuted ? uint64_t{moe_layers} * experts : 0);
}

}  // namespace tangram
