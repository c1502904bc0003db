// Runs the machine as the executor does, over simulated gates. For tests.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/attempt/machine.h"
#include "agent/gate/rules.h"

namespace tangram::attempt::testing {

class Hands {
 public:
  struct Gate {
    GateState state = GateState::kIdle;
    uint64_t attempt = 0;
    bool stopped = false;
    uint64_t steps = 0;
    uint64_t epoch = 0;
  };

  static constexpr auto kAbortWait = std::chrono::milliseconds(100);

  static std::string MemberOf(uint32_t device) { return "pod/" + std::to_string(device) + "/1"; }

  explicit Hands(uint32_t ranks) : gates(ranks), machine("w", kAbortWait, Members(ranks)) {}

  // Passes the event. Does marks and immediate actions; returns the reply or the action that takes
  // time.
  Later Tell(const Event& event) {
    Event now = event;
    while (true) {
      Step step = machine.On(now, Looks());
      changed |= step.changed;
      for (const Mark& mark : step.marks) Do(mark);
      if (const auto* later = std::get_if<Later>(&step.next)) return *later;
      const AtOnce& next = std::get<AtOnce>(step.next);
      if (const auto* arm = std::get_if<Arm>(&next)) {
        now = Armed{arm->attempt, arm->forward, DoArm(*arm)};
      } else if (const auto* back = std::get_if<TakeBack>(&next)) {
        now = TakenBack{back->attempt, DoTakeBack(*back)};
      } else if (const auto* flip = std::get_if<FlipGate>(&next)) {
        now = GateFlipped{flip->attempt, flip->device, flip->by, DoFlip(*flip)};
      }
    }
  }

  // Moves a gate by the rules; false: the rules reject the event.
  bool Move(uint32_t device, GateEvent event) {
    const auto next = GateAfter(gates[device].state, event);
    if (next) gates[device].state = *next;
    return next.has_value();
  }

  Gates Looks() const {
    Gates out;
    for (const Gate& gate : gates) out.push_back({gate.state, gate.stopped, gate.steps});
    return out;
  }

  std::vector<Gate> gates;
  Machine machine;
  std::vector<Mark> marks;  // done since the start
  bool changed = false;
  int failed_flips = 0;

 private:
  static std::vector<std::string> Members(uint32_t ranks) {
    std::vector<std::string> out;
    for (uint32_t device = 0; device < ranks; ++device) out.push_back(MemberOf(device));
    return out;
  }

  void Do(const Mark& mark) {
    marks.push_back(mark);
    if (const auto* stop = std::get_if<SetStopped>(&mark)) {
      gates[stop->device].stopped = stop->stopped;
    } else if (const auto* fence = std::get_if<FenceGate>(&mark)) {
      (void)Move(fence->device, GateEvent::kFence);
    } else if (const auto* reset = std::get_if<ResetGate>(&mark)) {
      (void)Move(reset->device, GateEvent::kReset);
    } else if (const auto* leave = std::get_if<Leave>(&mark)) {
      gates[leave->device].epoch = gates[leave->device].steps = 0;
    }
  }

  Status DoArm(const Arm& arm) {
    const auto& parts = machine.attempt()->parts;
    for (const auto& [device, part] : parts) {
      if (gates[device].state != GateState::kIdle) {
        return {Code::kWrongPhase, "gate " + std::to_string(device) + " is not idle"};
      }
    }
    for (const auto& [device, part] : parts) {
      (void)Move(device, GateEvent::kArm);
      gates[device].attempt = arm.attempt;
    }
    return OkStatus();
  }

  bool DoTakeBack(const TakeBack&) {
    std::vector<uint32_t> done;
    for (const auto& [device, part] : machine.attempt()->parts) {
      if (Move(device, GateEvent::kWithdraw)) {
        done.push_back(device);
        continue;
      }
      for (const uint32_t d : done) (void)Move(d, GateEvent::kArm);
      return false;
    }
    return true;
  }

  Status DoFlip(const FlipGate& flip) {
    const GateEvent event = flip.by == By::kForward          ? GateEvent::kFlipStopped
                            : machine.attempt()->by_agents() ? GateEvent::kFlipByWords
                                                             : GateEvent::kFlip;
    if (gates[flip.device].attempt != flip.attempt || !Move(flip.device, event)) {
      ++failed_flips;
      return {Code::kWrongPhase, "the gate does not flip"};
    }
    gates[flip.device].steps = 0;
    gates[flip.device].epoch = machine.attempt()->plan.target_epoch;
    return OkStatus();
  }
};

}  // namespace tangram::attempt::testing
