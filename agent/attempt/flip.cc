// From the permit to the flip: by an engine's go, by words that the agents exchange, or forward
// after a fence.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {

Status Machine::CheckPermit() const {
  if (attempt_->phase == Phase::kStaged) return OkStatus();
  return {Code::kWrongPhase, fmt::format("Permit of attempt {} in {}{}", attempt_->plan.attempt,
                                         NameOf(attempt_->phase),
                                         attempt_->error.empty() ? "" : ": " + attempt_->error)};
}

Step Machine::Do(const Permit& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "Permit"));
  if (attempt_->phase == Phase::kPermitted || attempt_->phase == Phase::kFlipped) {
    return Done();  // repeated
  }
  TANGRAM_REFUSE_IF_ERROR(CheckPermit());
  return Then(Arm{attempt_->plan.attempt});
}

// The driver may be gone after it told one agent of the permit.
Step Machine::Do(const PermitSeen& event, const Gates&) {
  if (!attempt_ || attempt_->plan.attempt != event.attempt || attempt_->phase != Phase::kStaged) {
    return Done();
  }
  return Then(Arm{event.attempt});
}

Step Machine::Do(const Armed& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(event.status);
  attempt_->phase = Phase::kPermitted;
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
  return current && WordsComplete() ? FlipNext(By::kWords) : Done();  // a world of one agent
}

Step Machine::Do(const Word& event, const Gates&) {
  if (last_ && last_->plan.attempt == event.header.attempt && event.header.world == world_ &&
      flipped_.contains(last_->plan.attempt)) {
    return Done();  // late, and of no more use
  }
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "Word"));
  const Plan& plan = attempt_->plan;
  if (!attempt_->by_agents()) {
    return Refuse(Code::kWrongPhase, "engines carry the words of this attempt");
  }
  if (event.target_hash != plan.target_hash) {
    return Refuse(Code::kBadPlan,
                  fmt::format("the words of pod '{}' are for another layout than attempt "
                              "{}'s",
                              event.pod, plan.attempt));
  }
  for (const uint32_t rank : event.ranks) {
    if (rank >= plan.pods.size()) {
      return Refuse(Code::kBadPlan, fmt::format("word of rank {}, the target has {} members", rank,
                                                plan.pods.size()));
    }
    if (plan.pods[rank] != event.pod) {
      return Refuse(Code::kUnauthenticated,
                    fmt::format("rank {} is of pod '{}', the word came from '{}'", rank,
                                plan.pods[rank], event.pod));
    }
  }
  attempt_->words.insert(event.ranks.begin(), event.ranks.end());
  return WordsComplete() ? FlipNext(By::kWords) : Done();
}

Step Machine::Do(const EngineFlip& event, const Gates& gates) {
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "the engine's flip"));
  const auto it = attempt_->parts.find(event.device);
  if (it == attempt_->parts.end()) {
    return Refuse(Code::kWrongPhase, fmt::format("device {} has no part in attempt {}",
                                                 event.device, attempt_->plan.attempt));
  }
  Part& part = it->second;
  if (event.target_hash != attempt_->plan.target_hash) {
    return Refuse(Code::kBadPlan, "the engine's flip is to another layout than the attempt's");
  }
  if (part.flipped) return Done();  // repeated
  if (part.committing) return Then(Wait{});
  if (attempt_->phase != Phase::kPermitted || attempt_->by_agents()) {
    return Refuse(Code::kWrongPhase,
                  fmt::format("an engine's flip in {} of a {}", NameOf(attempt_->phase),
                              NameOf(attempt_->plan.kind)));
  }
  if (gates[event.device].state != GateState::kLatched) {
    return Refuse(Code::kWrongPhase, "an engine's flip without its word");
  }
  if (gates[event.device].stopped) {
    return Refuse(Code::kWrongPhase, "an engine's flip after it gave the step up");
  }
  part.committing = true;
  return Then(Commit{attempt_->plan.attempt, event.device, By::kEngine});
}

// The parts of an attempt that flip together do so one after another.
Step Machine::FlipNext(By by, Step step) {
  for (auto& [device, part] : attempt_->parts) {
    if (part.flipped) continue;
    part.committing = true;
    part.gone = false;
    // A joiner steps nowhere before it has flipped; so that it stands still as those it joins.
    if (by == By::kForward && part.joining) step.marks.push_back(SetStopped{device, true});
    return Then(Commit{attempt_->plan.attempt, device, by}, std::move(step));
  }
  return AfterFlips(by, std::move(step));
}

Step Machine::FlipFailed(By by, const Status& status, uint32_t device) {
  attempt_->parts.at(device).committing = false;
  if (by == By::kEngine || by == By::kForward) return Changed(Refuse(status));
  attempt_->error = status.message();
  Step step = Changed();
  step.lines.push_back({Line::Level::kError,
                        fmt::format("flip of device {} by words: {}", device, status.message())});
  if (by == By::kWords) return Done(std::move(step));
  return AfterPeers(std::move(step));
}

Step Machine::Do(const Committed& event, const Gates&) {
  if (!event.status.ok()) return FlipFailed(event.by, event.status, event.device);
  Step step;
  // Who stands still may go on with this flip, unless its engine is gone.
  if (attempt_->by_agents() && event.by != By::kForward) {
    const bool gone = !event.attached || attempt_->parts.at(event.device).gone;
    step.marks.push_back(SetStopped{event.device, gone});
  }
  return Then(FlipGate{event.attempt, event.device, event.by}, std::move(step));
}

Step Machine::Do(const GateFlipped& event, const Gates&) {
  if (!event.status.ok()) return FlipFailed(event.by, event.status, event.device);
  Part& part = attempt_->parts.at(event.device);
  part.committing = false;
  part.flipped = true;
  Rank& rank = ranks_[event.device];
  rank.rank = part.target_rank;
  rank.epoch = attempt_->plan.target_epoch;
  flipped_.insert(event.attempt);
  Step step = Changed();
  const bool all = std::all_of(attempt_->parts.begin(), attempt_->parts.end(),
                               [](const auto& p) { return p.second.flipped; });
  if (all) {
    attempt_->phase = Phase::kFlipped;
    attempt_->error.clear();
    step.marks.push_back(AllFlipped{event.attempt, event.by});
    step.lines.push_back(
        {Line::Level::kInfo,
         event.by == By::kForward
             ? fmt::format("attempt {} went forward to epoch {} after a fence", event.attempt,
                           rank.epoch)
             : fmt::format("attempt {} flipped to epoch {}", event.attempt, rank.epoch)});
  }
  if (event.by == By::kEngine) return Acted(std::move(step));
  return FlipNext(event.by, std::move(step));
}

Step Machine::AfterFlips(By by, Step step) {
  if (by == By::kForward) return Acted(std::move(step));
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    Rank& rank = ranks_[device];
    if (rank.rank < 0 || attempt_->plan.target_ranks[device] >= 0) continue;
    rank.rank = -1;  // the fence removed it
    rank.removed = true;
  }
  if (by == By::kWords) return Done(std::move(step));
  return AfterPeers(std::move(step));
}

}  // namespace tangram::attempt
