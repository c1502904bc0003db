// The gate's rules (rules.h) over the page that agent and engine share. Each class is one side;
// both may run at the same time in two processes. The state word is the only thing both
// sides write, always by compare-and-swap (docs/architecture.md, section 4.1).
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

  // Whether a page is of a gate of this version and model. The engine can write it, so this says
  // what it was, and nothing relies on its staying so.
  static Status Check(const GatePage* page, uint32_t moe_layers, uint32_t experts);
  // Over a page of a gate whose agent died: what it was in the middle of is over.
  static AgentGate TakeOver(GatePage* page);

  GatePage* page() const { return page_; }
  GateState state() const;
  uint64_t attempt() const;

  // Idle -> Armed. kWrongPhase when not idle.
  Status Arm(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash);

  enum class Withdrawal { kWithdrawn, kLatched, kFlipped, kNotArmed };
  // Armed -> Idle, unless the word was given.
  Withdrawal Withdraw(uint64_t attempt);

  // Latched -> Flipped (`by_agents`: Armed -> Flipped). The epoch in force becomes `epoch`
  // and the steps start from 0 before anyone can see Flipped.
  Status Flip(uint64_t attempt, uint64_t epoch, bool by_agents);

  // After a fence: Armed or Latched -> Flipped. The rank is stopped, so nobody else moves it.
  Status FlipStopped(uint64_t attempt, uint64_t epoch);

  // Flipped -> Idle.
  void Reset(uint64_t attempt);

  // The engine's process is gone: whatever it latched is the agent's to resolve.
  void Fence();

  // Sets the epoch in force without a flip (a rank that left the world: 0).
  void SetEpoch(uint64_t epoch);

  // What the engine before reported of its load holds no more.
  void ForgetLoad();

  // A step was given up for good (the engine is gone), or the rank may go on.
  void SetStopped(bool stopped);
  bool stopped() const;
  // Ranks of the layout, below `ranks`, that the stopped engine cannot reach.
  std::vector<uint32_t> Unreachable(uint32_t ranks) const;
  // For whom of these ranks it stopped. The engine writes that: what makes no sense is left out.
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

  // The word for this step. Latches when `attempt` is armed for exactly this target;
  // an attempt that the engine has not prepared is never latched.
  GateVote Word(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash);
  // True: go, and still latched. False: unlatched. `words` are those of all members.
  bool Decide(std::span<const GateVote> words, size_t members);
  // After a go: not possible here. Unlatches; the reason reaches the agent's status.
  void Decline(std::string_view reason);
  // The step is given up for good. `pulled`: the others were told that the KV for the flip is here.
  void Stop(bool pulled);
  void SetUnreachable(std::span<const uint32_t> ranks);
  // Before Stop. Causes and doings are such.
  void SetMissed(std::span<const GateMissed> missed);
  bool stopped() const;
  bool latched() const;

 private:
  void Unlatch();

  GatePage* page_ = nullptr;
  GateVote mine_;
};

}  // namespace tangram
