// Prepare and Stage. Invalid requests are rejected here, before a byte moves.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/attempt/machine.h"
#include "agent/attempt/step.h"

namespace tangram::attempt {

Step Machine::Do(const Prepare& event, const Gates& gates) {
  const Header& header = event.header;
  if (attempt_ && attempt_->plan.attempt == header.attempt && header.world == world_) {
    if (attempt_->plan.request_hash != event.request_hash) {
      return Refuse(Code::kStaleAttempt,
                    fmt::format("attempt {} is prepared with another plan; use a new attempt id",
                                header.attempt));
    }
    return Done();  // repeated
  }
  TANGRAM_REFUSE_IF_ERROR(CheckWorld(header));
  const bool repair = event.kind == Kind::kRepair;
  // The old places of a flip are sources for a repair that follows directly.
  if (attempt_ && !(repair && attempt_->phase == Phase::kFlipped)) {
    return Refuse(Code::kWrongPhase,
                  fmt::format("attempt {} is in {}; abort or retire it before attempt {}",
                              attempt_->plan.attempt, NameOf(attempt_->phase), header.attempt));
  }
  if (event.by_run) TANGRAM_REFUSE_IF_ERROR(CheckRun(header.attempt, gates));
  if (header.attempt <= highest_) {
    return Refuse(Code::kStaleAttempt,
                  fmt::format("attempt {} has ended or was aborted, the highest id seen is {}",
                              header.attempt, highest_));
  }
  if (epoch() != 0 && header.epoch != epoch()) {
    return Refuse(Code::kStaleEpoch, fmt::format("the active epoch is {}, the call is for epoch {}",
                                                 epoch(), header.epoch));
  }
  if (event.target_epoch != header.epoch + 1) {
    return Refuse(Code::kBadPlan, fmt::format("target epoch {} does not follow epoch {}",
                                              event.target_epoch, header.epoch));
  }
  const bool first = event.kind == Kind::kFirst;
  if (first != (header.epoch == 0)) {
    return Refuse(Code::kBadPlan, fmt::format("a flip of kind {} cannot start from epoch {}",
                                              NameOf(event.kind), header.epoch));
  }
  if (event.kind == Kind::kUnspecified || *NameOf(event.kind) == '\0') {
    return Refuse(Code::kBadPlan, "the flip has no kind");
  }
  if (epoch() == 0 && !first && event.kind != Kind::kJoin) {
    return Refuse(
        Code::kStaleEpoch,
        fmt::format("no rank of this agent is a member of epoch {}; its ranks can only join",
                    header.epoch));
  }
  TANGRAM_REFUSE_IF_ERROR(event.geometry);
  return Then(Build{});
}

// Since Prepare, only engines may have attached or detached.
Step Machine::Do(const Built& event, const Gates& gates) {
  Attempt attempt;
  attempt.plan = event.plan;
  const uint64_t last = event.plan.run_last;
  if (last != 0 && (last <= event.plan.attempt || event.plan.kind != Kind::kLayout)) {
    return Refuse(Code::kBadPlan, fmt::format("invalid run of attempts {} to {} with first flip {}",
                                              event.plan.attempt, last, NameOf(event.plan.kind)));
  }
  Step step;
  Status parts = FindParts(&attempt);
  if (parts.ok()) parts = CheckConcerned(attempt, gates, &step);
  if (!parts.ok()) return Then(Answer{std::move(parts)}, std::move(step));
  // From now on no engine attaches. The phase stays Idle until memory and engines agree.
  before_ = std::exchange(attempt_, std::move(attempt));
  if (before_) return Then(KeepOld{before_->plan.attempt}, std::move(step));
  return Then(Reserve{attempt_->plan.attempt}, std::move(step));
}

Status Machine::FindParts(Attempt* attempt) const {
  const Plan& plan = attempt->plan;
  for (const Plan::Part& named : plan.parts) {
    uint32_t device = 0;
    while (device < ranks_.size() && ranks_[device].member != named.member) ++device;
    if (device == ranks_.size()) {
      return {Code::kBadPlan, fmt::format("the plan has a part for member {}, which is not of this "
                                          "agent (a restarted process is another member)",
                                          named.member)};
    }
    const Rank& rank = ranks_[device];
    const int32_t target_rank = plan.target_ranks[device];
    const bool leaving = target_rank < 0;
    if (leaving && (plan.kind != Kind::kLeave || rank.rank < 0)) {
      return {Code::kBadPlan,
              fmt::format("the plan has a part for member {}, which is not in the target layout",
                          named.member)};
    }
    const int32_t want = plan.kind == Kind::kLeave ? rank.rank : target_rank;
    if (static_cast<int64_t>(named.rank) != want) {
      return {Code::kBadPlan, fmt::format("member {} is rank {}, its part is for rank {}",
                                          named.member, want, named.rank)};
    }
    const auto [it, fresh] = attempt->parts.try_emplace(device);
    if (!fresh) {
      return {Code::kBadPlan, fmt::format("the plan has two parts for member {}", named.member)};
    }
    it->second.target_rank = target_rank;
    it->second.joining = rank.rank < 0;
    it->second.leaving = leaving;
  }
  return OkStatus();
}

// Checks that every rank concerned has a part, and that a repair has only stopped ranks.
Status Machine::CheckConcerned(const Attempt& attempt, const Gates& gates, Step* step) const {
  const bool repair = attempt.plan.kind == Kind::kRepair;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    const Rank& rank = ranks_[device];
    // A member that a repair removes has no part in it.
    const bool concerned = (rank.rank >= 0 && !repair) || attempt.plan.target_ranks[device] >= 0;
    if (repair && !concerned && rank.rank >= 0) {
      step->marks.push_back(SetStopped{device, true});  // fenced; its engine may be unresponsive
    } else if (repair && rank.rank >= 0 && !gates[device].stopped) {
      return {
          Code::kWrongPhase,
          fmt::format("member {} has not stopped; a repair requires stopped ranks", rank.member)};
    }
    if (repair && rank.rank < 0 && concerned) {
      return {Code::kBadPlan, fmt::format("a repair cannot add member {}", rank.member)};
    }
    if (concerned && !attempt.parts.contains(device)) {
      return {Code::kBadPlan, fmt::format("the plan has no part for member {}", rank.member)};
    }
  }
  if (attempt.parts.empty()) {
    return {Code::kBadPlan, "the plan has no part for any rank of this agent"};
  }
  return OkStatus();
}

Step Machine::Do(const Reserved& event, const Gates&) {
  if (!event.status.ok()) {
    attempt_.reset();
    Step step = Refuse(event.status);
    step.marks.push_back(Ended{event.attempt, End::kRefused});
    return step;
  }
  highest_ = std::max(highest_, event.attempt);
  if (const uint64_t last = attempt_->plan.run_last; last != 0) {
    run_ = Run{.first = event.attempt, .last = last, .why = {}};
  } else if (run_ && !run_->Has(event.attempt)) {
    run_.reset();
  }
  last_.reset();
  attempt_->phase = Phase::kPrepared;
  for (const auto& [device, part] : attempt_->parts) {
    // The engine detached after its consent, while others were queried: its preparation is lost.
    if (part.gone && attempt_->plan.kind != Kind::kFirst) {
      return Acted(Fail(fmt::format("device {}: the engine detached", device)));
    }
  }
  return Acted(Changed());
}

Step Machine::Do(const Stage& event, const Gates&) {
  TANGRAM_REFUSE_IF_ERROR(CheckCurrent(event.header, "Stage"));
  if (attempt_->phase == Phase::kFailed) {
    return Refuse(Code::kWrongPhase, "the attempt failed, abort it: " + attempt_->error);
  }
  if (attempt_->phase != Phase::kPrepared) return Done();  // repeated
  attempt_->phase = Phase::kStaging;
  return Then(StartStaging{attempt_->plan.attempt}, Changed());
}

Step Machine::Do(const Begun&, const Gates&) { return Acted({}); }

Step Machine::Do(const Staged& event, const Gates&) {
  if (!attempt_ || attempt_->plan.attempt != event.attempt || attempt_->phase != Phase::kStaging) {
    return Done();  // aborted, or failed, meanwhile
  }
  if (!event.status.ok()) return Done(Fail(event.status.message()));
  attempt_->phase = Phase::kStaged;
  return Done(Changed());
}

Step Machine::Fail(const std::string& error) {
  attempt_->phase = Phase::kFailed;
  attempt_->error = error;
  Step step;
  step.lines.push_back(
      {Line::Level::kWarn, fmt::format("attempt failed before the flip attempt={} error=\"{}\"",
                                       attempt_->plan.attempt, error)});
  return Changed(std::move(step));
}

}  // namespace tangram::attempt
