// Regular ends of an attempt: its abort, and the retirement of the old places.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {

// No flip after this.
Step Machine::GiveUp(Step step, bool keep) {
  attempt_->phase = Phase::kFailed;
  attempt_->over = true;
  return Then(Drop{attempt_->plan.attempt, attempt_->reason, keep}, std::move(step));
}

Step Machine::Do(const Abort& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(CheckWorld(event.header));
  // In a run, flips that have not begun are withdrawn here. The gate decides the one in progress.
  Step step;
  if (run_ && run_->Has(event.header.attempt)) EndRun("abort: " + event.reason, &step);
  const uint64_t id = UnderWay(event.header.attempt);
  if (!attempt_ || attempt_->plan.attempt != id) {
    if (attempt_ && id > attempt_->plan.attempt) {
      return Refuse(Code::kWrongPhase, fmt::format("attempt {} is in progress, not attempt {}",
                                                   attempt_->plan.attempt, id));
    }
    // Ended, or unknown. In both cases it can no longer begin.
    highest_ = std::max(highest_, id);
    return Then(Answer{.flipped = flipped_.contains(id)}, std::move(step));
  }
  attempt_->reason = event.reason;
  if (attempt_->committing()) return Then(Wait{}, std::move(step));  // its commit decides shortly
  if (attempt_->any_flipped()) return Then(Answer{.flipped = true}, std::move(step));
  if (attempt_->phase != Phase::kPermitted) return GiveUp(std::move(step));
  // A vote that other agents have received cannot be withdrawn.
  if (attempt_->by_agents()) return Then(AskPeers{id}, std::move(step));
  return Then(TakeBack{id}, std::move(step));
}

Step Machine::Do(const TakenBack& event, const Gates&) {
  return event.all ? GiveUp() : Then(AskPeers{event.attempt});
}

Step Machine::Do(const PeersSaid& event, const Gates& gates) {
  expired_ = event.expired;
  if (attempt_->committing()) return Then(Wait{});
  if (attempt_->by_agents() && event.say == Say::kFlipped) {
    // A missing vote that only others received, from an agent that died since, never arrives here.
    for (uint32_t rank = 0; rank < attempt_->plan.pods.size(); ++rank) attempt_->words.insert(rank);
    if (WordsComplete()) return FlipAll(By::kPeer);
  }
  if (event.say != Say::kBurned || attempt_->any_flipped()) return AfterPeers({});
  // A live engine may still be between its go and its commit. A fence resolves only the vote of a
  // detached engine, or votes of agents, which have no go.
  const bool resolved =
      attempt_->by_agents() ||
      std::all_of(attempt_->parts.begin(), attempt_->parts.end(), [&](const auto& part) {
        return gates[part.first].state != GateState::kLatched || event.gone.contains(part.first);
      });
  if (!resolved) return AfterPeers({});
  Step step;
  for (const auto& [device, part] : attempt_->parts) step.marks.push_back(FenceGate{device});
  return GiveUp(std::move(step));
}

// The peers' replies have not ended the attempt. An engine may have flipped it meanwhile.
Step Machine::AfterPeers(Step step) const {
  if (attempt_->any_flipped()) return Then(Answer{.flipped = true}, std::move(step));
  if (!expired_) return Then(Wait{}, std::move(step));
  return Then(
      Answer{{Code::kUnavailable, fmt::format("attempt {}: this agent has voted and the outcome is "
                                              "not known after {} ms; retry the abort",
                                              attempt_->plan.attempt, abort_wait_.count())}},
      std::move(step));
}

Step Machine::Do(const Dropped& event, const Gates&) {
  attempt_->phase = Phase::kIdle;
  if (attempt_->error.empty()) attempt_->error = "aborted: " + attempt_->reason;
  Step step = Changed();
  step.marks.push_back(Ended{event.attempt, End::kAborted});
  step.lines.push_back({Line::Level::kInfo, fmt::format("attempt aborted attempt={} reason=\"{}\"",
                                                        event.attempt, attempt_->reason)});
  last_ = std::exchange(attempt_, std::nullopt);
  return ReleaseNext(std::move(step));
}

Step Machine::Do(const Retire& event, const Gates& gates) {
  const Header& header = event.header;
  if (!attempt_ && last_ && last_->plan.attempt == header.attempt &&
      flipped_.contains(header.attempt) && header.world == world_) {
    return Done();  // repeated
  }
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(header, "Retire"));
  if (event.by_run) TANGRAM_REFUSE_IF_ERROR(CheckRun(header.attempt, gates));
  if (attempt_->committing()) return Then(Wait{});
  if (attempt_->phase != Phase::kFlipped) {
    return Refuse(Code::kWrongPhase, fmt::format("attempt {} cannot be retired in {}",
                                                 header.attempt, NameOf(attempt_->phase)));
  }
  // In its first step, a rank received the votes of all members in the new epoch. So no rank needs
  // the old places for the flip.
  for (const auto& [device, part] : attempt_->parts) {
    if (part.leaving || gates[device].steps >= 1) continue;
    return Refuse(Code::kWrongPhase,
                  fmt::format("rank {} has not completed a step of epoch {}; its old pieces are "
                              "still sources for a repair, retry later",
                              part.target_rank, attempt_->plan.target_epoch));
  }
  return Then(ReturnOld{header.attempt});
}

void Machine::CloseFlipped(Attempt* attempt, Step* step) {
  for (const auto& [device, part] : attempt->parts) {
    step->marks.push_back(ResetGate{device, attempt->plan.attempt});
    if (!part.leaving) continue;
    ranks_[device].epoch = 0;
    step->marks.push_back(Leave{device});
  }
  attempt->phase = Phase::kIdle;
  step->marks.push_back(Ended{attempt->plan.attempt, End::kFlipped});
}

Step Machine::Do(const Returned& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(event.status);
  Step step = Changed();
  CloseFlipped(&*attempt_, &step);
  last_ = std::exchange(attempt_, std::nullopt);
  releasing_.reason = "a repair removed it";
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    if (ranks_[device].removed) releasing_.devices.push_back(device);
  }
  return ReleaseNext(std::move(step));
}

Step Machine::Do(const EngineGone& event, const Gates&) {
  Step step = Changed();
  if (ranks_[event.device].rank >= 0) {
    step.marks.push_back(SetStopped{event.device, true});
    EndRun(fmt::format("device {}: the engine detached", event.device), &step);
  }
  if (!attempt_ || !attempt_->parts.contains(event.device)) return Done(std::move(step));
  attempt_->parts.at(event.device).gone = true;
  const Phase phase = attempt_->phase;
  if (attempt_->plan.kind == Kind::kFirst ||
      (phase != Phase::kPrepared && phase != Phase::kStaging && phase != Phase::kStaged)) {
    return Done(std::move(step));
  }
  Step failed = Fail(fmt::format("device {}: the engine detached", event.device));
  for (Line& line : failed.lines) step.lines.push_back(std::move(line));
  return Done(std::move(step));
}

// An engine that attaches to a rank in a layout has none of its requests and KV. A repair brings
// the rank back into the world.
Step Machine::Do(const EngineCame& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(CheckAttach(event.device));
  const Rank& rank = ranks_[event.device];
  Step step;
  step.marks.push_back(SetStopped{event.device, rank.epoch != 0 && rank.rank >= 0});
  return Done(std::move(step));
}

}  // namespace tangram::attempt
