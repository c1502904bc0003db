// The gate's rules (rules.h) over the page that agent and engine share. Each class is one side;
// both may run at the same time in two processes. The state word is the only field that both sides
// write, always by compare-and-swap (docs/architecture.md, section 4.1).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"
#include "agent/gate/gate_page.h"
#include "agent/gate/rules.h"

namespace tangram {

// First 8 bytes of a layout's hash, little-endian.
uint64_t GateHashWord(std::string_view hash);

// The agent's side. Not thread-safe against itself: the executor calls it under its lock.
class AgentGate {
 public:
  AgentGate() = default;
  // `page` has at least GatePageBytes(moe_layers, experts) zeroed bytes and outlives this.
  AgentGate(GatePage* page, uint32_t moe_layers, uint32_t experts);

  // Whether a page is of a gate of this version and model. The engine can write it, so the answer
  // may change, and no code relies on it later.
  static Status Check(const GatePage* page, uint32_t moe_layers, uint32_t experts);
  // Takes over the page of a gate whose agent died: its attempt is ended.
  static AgentGate TakeOver(GatePage* page);

  GatePage* page() const { return page_; }
  GateState state() const;
  uint64_t attempt() const;

  // Idle -> Armed. kWrongPhase when not idle.
  Status Arm(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash);

  enum class Withdrawal { kWithdrawn, kLatched, kFlipped, kNotArmed };
  // Armed -> Idle, unless the engine has voted.
  Withdrawal Withdraw(uint64_t attempt);

  // Latched -> Flipped (`by_agents`: Armed -> Flipped). The active epoch becomes `epoch` and the
  // steps start from 0 before any reader can see Flipped.
  Status Flip(uint64_t attempt, uint64_t epoch, bool by_agents);

  // After a fence: Armed or Latched -> Flipped. The rank is stopped, so the engine does not move
  // it.
  Status FlipStopped(uint64_t attempt, uint64_t epoch);

  // Flipped -> Idle.
  void Reset(uint64_t attempt);

  // The engine's process is gone: the agent resolves its vote.
  void Fence();

  // Sets the active epoch without a flip (a rank that left the world: 0).
  void SetEpoch(uint64_t epoch);

  // Clears the load that the previous engine reported.
  void ForgetLoad();

  // A step was abandoned for good (the engine is gone), or the rank may continue.
  void SetStopped(bool stopped);
  bool stopped() const;
  // Ranks of the layout, below `ranks`, that the stopped engine cannot reach.
  std::vector<uint32_t> Unreachable(uint32_t ranks) const;
  // The ranks because of which it stopped. The engine writes them; malformed entries are skipped.
  std::vector<GateMissed> Missed(uint32_t ranks) const;

 private:
  Status FlipBy(GateEvent event, uint64_t attempt, uint64_t epoch);

  GatePage* page_ = nullptr;
};

// The engine's side. One thread.
class EngineGate {
 public:
  EngineGate() = default;
  explicit EngineGate(GatePage* page) : page_(page) {}

  // The vote for this step. Latches if `attempt` is armed for exactly this target; an attempt that
  // the engine has not prepared is never latched.
  GateVote Word(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash);
  // True: go, and still latched. False: unlatched. `words` are the votes of all members.
  bool Decide(std::span<const GateVote> words, size_t members);
  // After a go: this rank cannot flip. Unlatches; the reason reaches the agent's status.
  void Decline(std::string_view reason);
  // Abandons the step for good. `pulled`: the others have this rank's confirmation of its KV.
  void Stop(bool pulled);
  void SetUnreachable(std::span<const uint32_t> ranks);
  // Before Stop. Causes and doings must be valid.
  void SetMissed(std::span<const GateMissed> missed);
  bool stopped() const;
  bool latched() const;

 private:
  void Unlatch();

  GatePage* page_ = nullptr;
  GateVote mine_;
};

}  // namespace tangram
