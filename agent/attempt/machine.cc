#include "agent/attempt/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tangram::attempt {

const char* NameOf(Phase phase) {
  switch (phase) {
    case Phase::kUnspecified:
      return "PHASE_UNSPECIFIED";
    case Phase::kIdle:
      return "PHASE_IDLE";
    case Phase::kPrepared:
      return "PHASE_PREPARED";
    case Phase::kStaging:
      return "PHASE_STAGING";
    case Phase::kStaged:
      return "PHASE_STAGED";
    case Phase::kPermitted:
      return "PHASE_PERMITTED";
    case Phase::kFlipped:
      return "PHASE_FLIPPED";
    case Phase::kFailed:
      return "PHASE_FAILED";
  }
  return "";
}

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kUnspecified:
      return "FLIP_KIND_UNSPECIFIED";
    case Kind::kFirst:
      return "FLIP_KIND_FIRST";
    case Kind::kJoin:
      return "FLIP_KIND_JOIN";
    case Kind::kLayout:
      return "FLIP_KIND_LAYOUT";
    case Kind::kLeave:
      return "FLIP_KIND_LEAVE";
    case Kind::kRepair:
      return "FLIP_KIND_REPAIR";
  }
  return "";
}

bool Machine::Attempt::any_flipped() const {
  return std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.second.flipped; });
}

bool Machine::Attempt::committing() const {
  return std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.second.committing; });
}

Machine::Machine(std::string world, std::chrono::milliseconds abort_wait,
                 std::vector<std::string> members)
    : world_(std::move(world)), abort_wait_(abort_wait) {
  for (std::string& member : members) ranks_.emplace_back().member = std::move(member);
}

Step Machine::On(const Event& event, const Gates& gates) {
  return std::visit([&](const auto& happened) { return Do(happened, gates); }, event);
}

std::optional<uint32_t> Machine::InForce() const {
  std::optional<uint32_t> member, left;
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    const Rank& rank = ranks_[device];
    if (rank.epoch == 0) continue;
    auto& best = rank.rank >= 0 ? member : left;
    if (!best || rank.epoch < ranks_[*best].epoch) best = device;
  }
  return member ? member : left;
}

uint64_t Machine::epoch() const {
  const auto device = InForce();
  return device ? ranks_[*device].epoch : 0;
}

bool Machine::Knows(uint64_t attempt) const {
  for (const auto* known : {&attempt_, &last_, &before_}) {
    if (*known && (*known)->plan.attempt == attempt) return true;
  }
  return false;
}

Machine::View Machine::ViewOf(uint64_t attempt, const Gates& gates) const {
  View view;
  view.flipped = flipped_.contains(attempt);
  if (attempt_ && attempt_->plan.attempt == attempt) {
    view.phase = attempt_->phase;
    view.contributed = attempt_->contributed;
    for (const auto& [device, part] : attempt_->parts) {
      const GateState state = gates[device].state;
      view.contributed |= state == GateState::kLatched || state == GateState::kFlipped;
    }
  } else if (attempt <= highest_) {
    view.phase = Phase::kIdle;  // ended: flipped or aborted
    view.contributed = view.flipped;
  }
  return view;
}

Status Machine::CheckWorld(const Header& header) const {
  if (header.world == world_) return OkStatus();
  return {Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for world '{}'",
                                         world_, header.world)};
}

Status Machine::CheckPeer(const Header& header) const {
  if (header.world == world_) return OkStatus();
  return {Code::kWrongWorld, fmt::format("this agent serves world '{}'", world_)};
}

Status Machine::CheckCurrent(const Header& header, const char* call) const {
  TANGRAM_RETURN_IF_ERROR(CheckWorld(header));
  if (!attempt_ || attempt_->plan.attempt != header.attempt) {
    if (header.attempt > highest_) {
      return {Code::kWrongPhase,
              fmt::format("{} of attempt {}: the attempt is not prepared on this agent", call,
                          header.attempt)};
    }
    return {
        Code::kStaleAttempt,
        fmt::format("{} of attempt {}: {}", call, header.attempt,
                    attempt_ ? fmt::format("attempt {} is in progress", attempt_->plan.attempt)
                             : fmt::format("no attempt is in progress, the highest id seen is {}",
                                           highest_))};
  }
  const uint64_t from = attempt_->plan.from_epoch;
  if (header.epoch != from && header.epoch != from + 1) {
    return {
        Code::kStaleEpoch,
        fmt::format("{} of attempt {}: the attempt starts from epoch {}, the call is for epoch {}",
                    call, attempt_->plan.attempt, from, header.epoch)};
  }
  return OkStatus();
}

Status Machine::CheckAttach(uint32_t device) const {
  // Otherwise the engine would receive the rank's old member id.
  if (std::find(releasing_.devices.begin(), releasing_.devices.end(), device) !=
      releasing_.devices.end()) {
    return {Code::kWrongPhase,
            fmt::format("member {} is being released; attach again later", ranks_[device].member)};
  }
  if (!attempt_ || attempt_->phase == Phase::kFlipped) return OkStatus();
  return {Code::kWrongPhase, fmt::format("attempt {} is in progress ({}); attach again later",
                                         attempt_->plan.attempt, NameOf(attempt_->phase))};
}

// A pull belongs to an attempt in progress here. After its end (or before its start) no other agent
// may read these pages.
Status Machine::CheckPull(const Header& header) const {
  TANGRAM_RETURN_IF_ERROR(CheckPeer(header));
  if (attempt_ && attempt_->plan.attempt == header.attempt) return OkStatus();
  return {header.attempt > highest_ ? Code::kNotHeld : Code::kStaleAttempt,
          fmt::format("pull of attempt {}: {}", header.attempt,
                      attempt_ ? fmt::format("attempt {} is in progress", attempt_->plan.attempt)
                               : fmt::format("no attempt is in progress, the highest id seen is {}",
                                             highest_))};
}

Status Machine::CheckKvPull(const Header& header, uint32_t device, bool ahead) const {
  TANGRAM_RETURN_IF_ERROR(CheckCurrent(header, "KV pull"));
  const Phase phase = attempt_->phase;
  // KV copied ahead goes to pages that no layout uses yet: any time before the flip is fine.
  const bool early =
      phase == Phase::kPrepared || phase == Phase::kStaging || phase == Phase::kStaged;
  if (attempt_->parts.contains(device) && (phase == Phase::kPermitted || (ahead && early))) {
    return OkStatus();
  }
  return {Code::kWrongPhase, fmt::format("KV pull is not allowed in {}", NameOf(attempt_->phase))};
}

}  // namespace tangram::attempt
