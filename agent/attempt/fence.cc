// After a death: the outcome of an attempt after a fence, the release of removed members, and ranks
// that outlived their agent (docs/architecture.md, section 8).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {
namespace {

bool Contains(const std::vector<std::string>& members, const std::string& member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

// "<pod uid>/<device>/<incarnation>" with the next incarnation.
std::string NextMember(const std::string& id) {
  const size_t slash = id.rfind('/');
  uint64_t incarnation = 0;
  std::from_chars(id.data() + slash + 1, id.data() + id.size(), incarnation);
  return id.substr(0, slash + 1) + std::to_string(incarnation + 1);
}

}  // namespace

Step Machine::Do(const Resolve& event, const Gates& gates) {
  TANGRAM_REFUSE_IF_ERROR(CheckWorld(event.header));
  const bool forward = event.outcome == Outcome::kForward;
  if (!forward && event.outcome != Outcome::kHold && event.outcome != Outcome::kStay) {
    return Refuse(Code::kInvalid, "Resolve has no outcome");
  }
  if (!attempt_ || attempt_->plan.attempt != event.header.attempt) return Over(event);
  if (attempt_->committing()) return Then(Wait{});
  if (event.outcome == Outcome::kHold) {
    EndRun("fence");
    if (!attempt_->any_flipped() || attempt_->phase == Phase::kFlipped) {
      attempt_->held = true;
      return Done(Changed());
    }
    // A rank of this agent flipped, so all must. The agent reports only one layout, so it replies
    // after all its ranks have the target. The others flip now.
    Step rest;
    for (const auto& [device, part] : attempt_->parts) {
      if (!part.flipped) rest.marks.push_back(SetStopped{device, true});
    }
    return FlipAll(By::kForward, std::move(rest));
  }
  Step step;
  std::set<uint32_t> lost;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    if (!Contains(event.lost, ranks_[device].member)) continue;
    lost.insert(device);  // later requests of its engine are too late
    step.marks.push_back(SetStopped{device, true});
  }
  for (const auto& [device, part] : attempt_->parts) {
    // A joiner does not step before its flip.
    if (part.flipped || part.joining || gates[device].stopped || lost.contains(device)) continue;
    return Then(
        Answer{{Code::kWrongPhase,
                fmt::format("member {} has not stopped, the outcome is not known yet; retry later",
                            ranks_[device].member)}},
        std::move(step));
  }
  if (forward) {
    EndRun("fence");
    if (attempt_->phase == Phase::kFlipped) return Acted(std::move(step));
    return GoForward(std::move(step));
  }
  if (attempt_->any_flipped()) {
    return Then(Answer{{Code::kWrongPhase, fmt::format("attempt {} has flipped on this agent",
                                                       attempt_->plan.attempt)}},
                std::move(step));
  }
  EndRun("fence");
  const bool keep = attempt_->phase == Phase::kStaged || attempt_->phase == Phase::kPermitted;
  attempt_->error = "aborted by a fence: " + event.reason;
  attempt_->reason = event.reason;
  for (const auto& [device, part] : attempt_->parts) step.marks.push_back(FenceGate{device});
  return GiveUp(std::move(step), keep);
}

Step Machine::Over(const Resolve& event) {
  if (event.outcome == Outcome::kHold) return Done();  // Status reports the result
  const uint64_t id = event.header.attempt;
  const bool flipped = flipped_.contains(id);
  if ((event.outcome == Outcome::kForward) != flipped) {
    return Refuse(Code::kWrongPhase,
                  fmt::format("attempt {} has ended on this agent: {}", id,
                              flipped ? "it flipped" : "it did not flip and can no longer flip"));
  }
  if (run_ && id >= run_->first) EndRun("fence");
  highest_ = std::max(highest_, id);
  return Done();
}

// One survivor flipped, so every member had verified and voted.
Step Machine::GoForward(Step step) {
  if (attempt_->phase == Phase::kStaged && !attempt_->by_agents()) {
    // A joiner that did not receive the permit.
    return Then(Arm{attempt_->plan.attempt, true}, std::move(step));
  }
  if (attempt_->phase != Phase::kPermitted) {
    return Then(Answer{{Code::kWrongPhase,
                        fmt::format("attempt {} cannot roll forward from {}{}",
                                    attempt_->plan.attempt, NameOf(attempt_->phase),
                                    attempt_->error.empty() ? "" : ": " + attempt_->error)}},
                std::move(step));
  }
  return FlipAll(By::kForward, std::move(step));
}

Step Machine::Do(const Release& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(CheckWorld(event.header));
  if (attempt_ && attempt_->committing()) return Then(Wait{});
  EndRun("members released");
  std::deque<uint32_t> devices;
  bool part = false;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    const Rank& rank = ranks_[device];
    if (!event.world_ends && !Contains(event.members, rank.member)) continue;
    if (!event.world_ends && rank.rank >= 0 && rank.epoch >= event.header.epoch) {
      return Refuse(
          Code::kWrongPhase,
          fmt::format("member {} is rank {} of epoch {}; only a later epoch can exclude it",
                      rank.member, rank.rank, rank.epoch));
    }
    devices.push_back(device);
    part |= attempt_ && attempt_->parts.contains(device);
  }
  releasing_ = {std::move(devices), event.reason};
  if (!part) return ReleaseNext({});
  Step step;
  for (const auto& [device, p] : attempt_->parts) step.marks.push_back(FenceGate{device});
  attempt_->reason = event.reason;
  if (!attempt_->any_flipped()) return GiveUp(std::move(step));
  attempt_->over = true;
  return Then(KeepOld{attempt_->plan.attempt}, std::move(step));
}

Step Machine::Do(const Kept&, const Gates&) {
  Step step;
  if (before_) {
    CloseFlipped(&*before_, &step);
    before_.reset();
    return Then(Reserve{attempt_->plan.attempt}, std::move(step));
  }
  CloseFlipped(&*attempt_, &step);
  last_ = std::exchange(attempt_, std::nullopt);
  return ReleaseNext(std::move(step));
}

// Stops the rank before its memory is freed. An engine that was unresponsive may still compute from
// this memory; it checks `stopped` before it emits.
Step Machine::ReleaseNext(Step step) {
  if (releasing_.devices.empty()) return Acted(std::move(step));
  const uint32_t device = releasing_.devices.front();
  step.marks.push_back(SetStopped{device, true});
  return Then(Dismiss{device, releasing_.reason}, std::move(step));
}

Step Machine::Do(const Dismissed& event, const Gates&) {
  Rank& rank = ranks_[event.device];
  Step step;
  step.lines.push_back({Line::Level::kWarn, fmt::format("member released member={} reason=\"{}\"",
                                                        rank.member, releasing_.reason)});
  rank = {.member = NextMember(rank.member)};
  step.marks.push_back(FenceGate{event.device});
  step.marks.push_back(Leave{event.device});  // stopped until another engine attaches
  return Then(Empty{event.device, rank.member}, std::move(step));
}

Step Machine::Do(const Emptied&, const Gates&) {
  releasing_.devices.pop_front();
  return ReleaseNext(Changed());
}

Step Machine::Do(const Resumed& event, const Gates&) {
  ranks_[event.device] = {
      .member = event.member, .rank = event.rank, .epoch = event.rank >= 0 ? event.epoch : 0};
  run_.reset();  // the flips that were left are unknown
  // The previous agent's attempt has ended here, so its number is used up.
  highest_ = std::max(highest_, event.attempt);
  return Done(Changed());
}

}  // namespace tangram::attempt
