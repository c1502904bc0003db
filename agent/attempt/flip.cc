// From the permit to the flip: on an engine's request, by votes that the agents exchange, or
// forward after a fence.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {

Status Machine::CheckPermit() const {
  if (attempt_->phase == Phase::kStaged) return OkStatus();
  return {Code::kWrongPhase, fmt::format("attempt {} cannot be permitted in {}{}",
                                         attempt_->plan.attempt, NameOf(attempt_->phase),
                                         attempt_->error.empty() ? "" : ": " + attempt_->error)};
}

Step Machine::Do(const Permit& event, const Gates& gates) {
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "Permit"));
  // The permit of the first flip covers the whole run, until the run ends.
  if (event.by_run) TANGRAM_REFUSE_IF_ERROR(CheckRun(event.header.attempt, gates));
  if (attempt_->phase == Phase::kPermitted || attempt_->phase == Phase::kFlipped) {
    return Done();  // repeated
  }
  TANGRAM_REFUSE_IF_ERROR(CheckPermit());
  return Then(Arm{attempt_->plan.attempt});
}

// The driver may have died after it sent the permit to one agent.
Step Machine::Do(const PermitSeen& event, const Gates&) {
  if (!attempt_ || attempt_->plan.attempt != event.attempt || attempt_->phase != Phase::kStaged) {
    return Done();
  }
  return Then(Arm{event.attempt});
}

Step Machine::Do(const Armed& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(event.status);
  attempt_->phase = Phase::kPermitted;
  if (run_ && run_->Has(event.attempt)) run_->permitted = true;
  if (event.forward) return Changed(GoForward());
  if (!attempt_->by_agents()) return Acted(Changed());
  for (const auto& [device, part] : attempt_->parts) {
    attempt_->words.insert(static_cast<uint32_t>(part.target_rank));
  }
  attempt_->contributed = true;
  return Then(TellWords{event.attempt}, Changed());
}

bool Machine::WordsComplete() const {
  return attempt_->phase == Phase::kPermitted && !attempt_->held && !attempt_->over &&
         attempt_->words.size() == attempt_->plan.pods.size() && !attempt_->committing();
}

Step Machine::Do(const WordsOut& event, const Gates&) {
  const bool current = attempt_ && attempt_->plan.attempt == event.attempt;
  return current && WordsComplete() ? FlipAll(By::kWords) : Done();  // a world of one agent
}

Step Machine::Do(const Word& event, const Gates&) {
  if (last_ && last_->plan.attempt == event.header.attempt && event.header.world == world_ &&
      flipped_.contains(last_->plan.attempt)) {
    return Done();  // late, and no longer needed
  }
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "Word"));
  const Plan& plan = attempt_->plan;
  if (!attempt_->by_agents()) {
    return Refuse(Code::kWrongPhase,
                  "the engines exchange the votes of this attempt, not the agents");
  }
  if (event.target_hash != plan.target_hash) {
    return Refuse(
        Code::kBadPlan,
        fmt::format("the votes of pod '{}' are for another layout than that of attempt {}",
                    event.pod, plan.attempt));
  }
  for (const uint32_t rank : event.ranks) {
    if (rank >= plan.pods.size()) {
      return Refuse(Code::kBadPlan,
                    fmt::format("vote of rank {}, but the target layout has {} ranks", rank,
                                plan.pods.size()));
    }
    if (plan.pods[rank] != event.pod) {
      return Refuse(Code::kUnauthenticated,
                    fmt::format("rank {} belongs to pod '{}', but its vote came from pod '{}'",
                                rank, plan.pods[rank], event.pod));
    }
  }
  attempt_->words.insert(event.ranks.begin(), event.ranks.end());
  return WordsComplete() ? FlipAll(By::kWords) : Done();
}

Step Machine::Do(const EngineFlip& event, const Gates& gates) {
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "engine flip"));
  const auto it = attempt_->parts.find(event.device);
  if (it == attempt_->parts.end()) {
    return Refuse(Code::kWrongPhase, fmt::format("device {} has no part in attempt {}",
                                                 event.device, attempt_->plan.attempt));
  }
  Part& part = it->second;
  if (event.target_hash != attempt_->plan.target_hash) {
    return Refuse(
        Code::kBadPlan,
        fmt::format("device {}: engine requested a flip to another layout than that of attempt {}",
                    event.device, attempt_->plan.attempt));
  }
  if (part.flipped) return Done();  // repeated
  if (part.committing) return Then(Wait{});
  if (attempt_->phase != Phase::kPermitted || attempt_->by_agents()) {
    return Refuse(
        Code::kWrongPhase,
        fmt::format("device {}: engine requested the flip of attempt {} ({}) in {}", event.device,
                    attempt_->plan.attempt, NameOf(attempt_->plan.kind), NameOf(attempt_->phase)));
  }
  if (gates[event.device].state != GateState::kLatched) {
    return Refuse(
        Code::kWrongPhase,
        fmt::format("device {}: engine requested the flip of attempt {} without a latched vote",
                    event.device, attempt_->plan.attempt));
  }
  if (gates[event.device].stopped) {
    return Refuse(
        Code::kWrongPhase,
        fmt::format("device {}: engine requested the flip of attempt {} after it had stopped",
                    event.device, attempt_->plan.attempt));
  }
  part.committing = true;
  part.gone = false;
  return Then(Commit{attempt_->plan.attempt, {event.device}, By::kEngine});
}

// Flips all parts: their memory commits first, then all their gates flip together.
Step Machine::FlipAll(By by, Step step) {
  Commit commit{attempt_->plan.attempt, {}, by};
  for (auto& [device, part] : attempt_->parts) {
    if (part.flipped) continue;
    part.committing = true;
    part.gone = false;
    // A joiner does not step before its flip. Now it is stopped, like the ranks that it joins.
    if (by == By::kForward && part.joining) step.marks.push_back(SetStopped{device, true});
    commit.devices.push_back(device);
  }
  return Then(std::move(commit), std::move(step));
}

Step Machine::Do(const Committed& event, const Gates&) {
  const auto end = event.devices.begin() + static_cast<std::ptrdiff_t>(event.done);
  attempt_->flipping = {event.devices.begin(), end};
  for (const uint32_t device : attempt_->flipping) {
    attempt_->parts.at(device).gone |= !event.attached.contains(device);
  }
  for (auto left = end; left != event.devices.end(); ++left) {
    attempt_->parts.at(*left).committing = false;  // for the next try
  }
  if (end != event.devices.end()) attempt_->failing = *end;
  attempt_->failure = event.status;
  return FlipGates(event.by, {});
}

Step Machine::FlipGates(By by, Step step) {
  if (attempt_->flipping.empty()) {
    if (attempt_->failure.ok()) return AfterFlips(by, std::move(step));
    return FlipFailed(by, attempt_->failing, attempt_->failure, std::move(step));
  }
  const uint32_t device = attempt_->flipping.front();
  // A stopped rank may continue after this flip, unless its engine detached.
  if (attempt_->by_agents() && by != By::kForward) {
    step.marks.push_back(SetStopped{device, attempt_->parts.at(device).gone});
  }
  return Then(FlipGate{attempt_->plan.attempt, device, by}, std::move(step));
}

Step Machine::Do(const GateFlipped& event, const Gates&) {
  if (!event.status.ok()) {
    for (const uint32_t device : attempt_->flipping) attempt_->parts.at(device).committing = false;
    return FlipFailed(event.by, event.device, event.status, {});
  }
  attempt_->flipping.pop_front();
  Part& part = attempt_->parts.at(event.device);
  part.committing = false;
  part.flipped = true;
  Rank& rank = ranks_[event.device];
  rank.rank = part.target_rank;
  rank.epoch = attempt_->plan.target_epoch;
  flipped_.insert(event.attempt);
  if (flipped_.size() > kMostFlipped) flipped_.erase(flipped_.begin());
  Step step = Changed();
  const bool all = std::all_of(attempt_->parts.begin(), attempt_->parts.end(),
                               [](const auto& p) { return p.second.flipped; });
  if (all) {
    attempt_->phase = Phase::kFlipped;
    attempt_->error.clear();
    step.marks.push_back(AllFlipped{event.attempt, event.by});
    const char* how = event.by == By::kForward
                          ? "attempt rolled forward after a fence attempt={} epoch={}"
                          : "attempt flipped attempt={} epoch={}";
    step.lines.push_back(
        {Line::Level::kInfo, fmt::format(fmt::runtime(how), event.attempt, rank.epoch)});
  }
  return FlipGates(event.by, std::move(step));
}

Step Machine::FlipFailed(By by, uint32_t device, const Status& status, Step step) {
  step = Changed(std::move(step));
  if (by == By::kEngine || by == By::kForward) return Then(Answer{status}, std::move(step));
  attempt_->error = status.message();
  step.lines.push_back(
      {Line::Level::kError, fmt::format("flip by the votes of agents failed device={} error=\"{}\"",
                                        device, status.message())});
  return by == By::kWords ? Done(std::move(step)) : AfterPeers(std::move(step));
}

Step Machine::AfterFlips(By by, Step step) {
  const bool repair = attempt_->plan.kind == Kind::kRepair;
  if (by == By::kEngine || (by == By::kForward && !repair)) return Acted(std::move(step));
  // After a repair, however it ended, ranks of this agent without a part in its target are out. One
  // that kept its old epoch would hold back the epoch that the whole agent reports.
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    Rank& rank = ranks_[device];
    if (rank.rank < 0 || attempt_->plan.target_ranks[device] >= 0) continue;
    rank.rank = -1;  // the fence removed it
    rank.removed = true;
  }
  if (by == By::kForward) return Acted(std::move(step));
  return by == By::kWords ? Done(std::move(step)) : AfterPeers(std::move(step));
}

}  // namespace tangram::attempt
