// What happens when something died: the outcome of an attempt after a fence, a permit that the
// driver could not tell everybody, members that are none any more (docs/architecture.md,
// section 8).
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

#include "agent/base/fault.h"
#include "agent/transition/executor.h"

namespace tangram {
namespace {

const fault::Point kResolveBefore("resolve.before", fault::kErrors);
const fault::Point kResolveAfter("resolve.after", fault::kErrors);
const fault::Point kReleaseBefore("release.before", fault::kErrors);

constexpr auto kAskAgain = std::chrono::milliseconds(500);

// "<pod uid>/<device>/<incarnation>" with the next incarnation.
std::string NextMember(const std::string& id) {
  const size_t slash = id.rfind('/');
  uint64_t incarnation = 0;
  std::from_chars(id.data() + slash + 1, id.data() + id.size(), incarnation);
  return id.substr(0, slash + 1) + std::to_string(incarnation + 1);
}

}  // namespace

// The driver may be gone after it told one agent of the permit: who is staged asks the others,
// and takes the permit as given when one of them was permitted or flipped.
void Executor::AwaitPermit(const AttemptPtr& attempt, const std::stop_token& stop) {
  const auto over = [&] {
    return stop.stop_requested() || attempt_ != attempt || attempt->phase != v1::PHASE_STAGED;
  };
  v1::QueryRequest query;
  *query.mutable_header() = HeaderOf(*attempt);
  auto wait = options_.permit_wait;
  while (true) {
    {
      std::unique_lock lock(mu_);
      if (changed_.wait_for(lock, wait, over)) return;
    }
    wait = kAskAgain;
    std::string permitted;  // who has it
    AskAll(peers_, OtherAgents(*attempt), query, stop,
           [&](const std::string& agent, const v1::QueryResponse& seen) {
             const bool has = seen.phase() == v1::PHASE_PERMITTED || seen.flipped();
             if (has) permitted = agent;
             return has;
           });
    if (permitted.empty()) continue;
    const std::scoped_lock lock(mu_);
    if (over()) return;
    spdlog::warn("attempt {}: {} has the permit and the driver is silent; taken as given",
                 attempt->id, permitted);
    if (const Status status = PermitLocked(attempt.get()); !status.ok()) {
      spdlog::error("attempt {}: {}", attempt->id, status.message());
    }
    return;
  }
}

bool Executor::StoppedLocked(const Attempt& attempt, std::string* who) const {
  for (const auto& [device, part] : attempt.parts) {
    const Rank& rank = ranks_[device];
    // A joiner steps nowhere before it has flipped.
    if (part.flipped || part.joining || rank.gate.stopped()) continue;
    *who = rank.member.id();
    return false;
  }
  return true;
}

// One survivor flipped, so every member had verified and given its word.
Status Executor::ForwardLocked(Attempt* attempt) {
  if (attempt->phase == v1::PHASE_STAGED && !attempt->by_agents()) {
    TANGRAM_RETURN_IF_ERROR(PermitLocked(attempt));  // a joiner that was not told
  }
  if (attempt->phase != v1::PHASE_PERMITTED) {
    return {Code::kWrongPhase, fmt::format("attempt {} cannot go forward from {}{}", attempt->id,
                                           v1::Phase_Name(attempt->phase),
                                           attempt->error.empty() ? "" : ": " + attempt->error)};
  }
  for (auto& [device, part] : attempt->parts) {
    if (part.flipped) continue;
    Rank& rank = ranks_[device];
    if (part.joining) rank.gate.SetStopped(true);  // so are the members that it joins
    TANGRAM_RETURN_IF_ERROR(fault::Check("flip.before_commit"));
    TANGRAM_RETURN_IF_ERROR(rank.memory->Commit());
    TANGRAM_RETURN_IF_ERROR(rank.gate.FlipStopped(attempt->id, attempt->target->epoch()));
    rank.layout = attempt->target;
    rank.rank = part.target_rank;
    part.flipped = true;
    flipped_.insert(attempt->id);
  }
  attempt->phase = v1::PHASE_FLIPPED;
  attempt->error.clear();
  peers_now_ = attempt->peers();
  spdlog::info("attempt {} went forward to epoch {} after a fence", attempt->id,
               attempt->target->epoch());
  Changed();
  return OkStatus();
}

Status Executor::Resolve(const v1::ResolveRequest& request) {
  const std::scoped_lock call(call_mu_);
  TANGRAM_RETURN_IF_ERROR(fault::Check("resolve.before"));
  const v1::Header& header = request.header();
  const bool forward = request.outcome() == v1::OUTCOME_FORWARD;
  const bool hold = request.outcome() == v1::OUTCOME_HOLD;
  AttemptPtr attempt;
  bool keep = false;
  {
    const std::scoped_lock lock(mu_);
    if (header.world() != options_.world) {
      return {Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for '{}'",
                                             options_.world, header.world())};
    }
    if (!forward && !hold && request.outcome() != v1::OUTCOME_STAY) {
      return {Code::kInvalid, "Resolve without an outcome"};
    }
    if (!attempt_ || attempt_->id != header.attempt()) {
      if (hold) return OkStatus();  // it is over, as Status says
      const bool flipped = flipped_.contains(header.attempt());
      if (forward != flipped) {
        return {Code::kWrongPhase,
                fmt::format("attempt {} is over here: {}", header.attempt(),
                            flipped ? "it flipped" : "it never flipped and cannot any more")};
      }
      highest_ = std::max(highest_, header.attempt());
      return OkStatus();
    }
    attempt = attempt_;
    if (hold) {
      attempt->held = true;
      Changed();
      return OkStatus();
    }
    for (Rank& rank : ranks_) {
      const auto& lost = request.lost();
      if (std::find(lost.begin(), lost.end(), rank.member.id()) == lost.end()) continue;
      rank.gate.SetStopped(true);  // whatever its engine asks for later comes too late
    }
    if (std::string who; !StoppedLocked(*attempt, &who)) {
      return {Code::kWrongPhase,
              fmt::format("member {} has not stopped: the outcome is not known yet", who)};
    }
    if (forward) {
      if (attempt->phase != v1::PHASE_FLIPPED)
        TANGRAM_RETURN_IF_ERROR(ForwardLocked(attempt.get()));
      return fault::Check("resolve.after");
    }
    if (AnyFlipped(*attempt)) {
      return {Code::kWrongPhase, fmt::format("attempt {} has flipped here", attempt->id)};
    }
    keep = attempt->phase == v1::PHASE_STAGED || attempt->phase == v1::PHASE_PERMITTED;
    attempt->phase = v1::PHASE_FAILED;  // no flip from here on
    attempt->error = "a fence: " + request.reason();
    for (const auto& [device, part] : attempt->parts) ranks_[device].gate.Fence();
  }
  Release(attempt, request.reason(), keep);
  return fault::Check("resolve.after");
}

// A flip that a repair follows at once: what it would give back stays, as a source.
void Executor::KeepFlipped(const AttemptPtr& attempt) {
  stager_.request_stop();
  words_.request_stop();
  changed_.notify_all();
  if (words_.joinable()) words_.join();
  for (const auto& [device, part] : attempt->parts) {
    if (part.leaving) {
      (void)ranks_[device].memory->Retire();
    } else {
      ranks_[device].memory->Keep();
    }
  }
  const std::scoped_lock lock(mu_);
  for (const auto& [device, part] : attempt->parts) {
    Rank& rank = ranks_[device];
    rank.gate.Reset(attempt->id);
    if (!part.leaving) continue;
    rank.layout.reset();
    rank.gate.SetEpoch(0);
  }
  attempt->phase = v1::PHASE_IDLE;
  CountLocked(*attempt, "flipped");
}

void Executor::ReleaseRank(uint32_t device, const std::string& reason) {
  {
    // Before its memory goes: an engine that was silent for long may still compute from it, and
    // looks here before it emits.
    const std::scoped_lock lock(mu_);
    ranks_[device].gate.SetStopped(true);
  }
  engines_->Dismiss(device, reason);
  std::string id;
  {
    const std::scoped_lock lock(mu_);
    Rank& rank = ranks_[device];
    spdlog::warn("member {} is out of the world for good: {}", rank.member.id(), reason);
    id = NextMember(rank.member.id());
    rank.member.set_id(id);
    rank.layout.reset();
    rank.rank = -1;
    rank.removed = rank.fresh = false;
    rank.gate.Fence();
    rank.gate.SetEpoch(0);  // and stays stopped, until another engine comes
  }
  ranks_[device].memory->Reset(id);
  const std::scoped_lock lock(mu_);
  Changed();
}

Status Executor::Release(const v1::ReleaseRequest& request) {
  const std::scoped_lock call(call_mu_);
  TANGRAM_RETURN_IF_ERROR(fault::Check("release.before"));
  std::vector<uint32_t> devices;
  AttemptPtr attempt;
  {
    const std::scoped_lock lock(mu_);
    if (request.header().world() != options_.world) {
      return {Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for '{}'",
                                             options_.world, request.header().world())};
    }
    for (uint32_t device = 0; device < ranks_.size(); ++device) {
      const Rank& rank = ranks_[device];
      const bool named = std::find(request.members().begin(), request.members().end(),
                                   rank.member.id()) != request.members().end();
      if (!named && !request.world_ends()) continue;
      if (!request.world_ends() && rank.rank >= 0 &&
          rank.layout->epoch() >= request.header().epoch()) {
        return {Code::kWrongPhase,
                fmt::format("member {} is rank {} of epoch {}; only a later epoch can go on "
                            "without it",
                            rank.member.id(), rank.rank, rank.layout->epoch())};
      }
      devices.push_back(device);
    }
    const bool part = attempt_ && std::any_of(devices.begin(), devices.end(), [&](uint32_t d) {
                        return attempt_->parts.contains(d);
                      });
    if (part) attempt = attempt_;
  }
  if (attempt) {
    bool flipped = false;
    {
      // Looked at and ended in one: an engine's flip comes before both or not at all.
      const std::scoped_lock lock(mu_);
      flipped = AnyFlipped(*attempt);
      for (const auto& [device, part] : attempt->parts) ranks_[device].gate.Fence();
      if (!flipped) attempt->phase = v1::PHASE_FAILED;
    }
    if (flipped) {
      KeepFlipped(attempt);
      const std::scoped_lock lock(mu_);
      last_ = attempt;
      attempt_.reset();
    } else {
      Release(attempt, request.reason());
    }
  }
  for (const uint32_t device : devices) ReleaseRank(device, request.reason());
  return OkStatus();
}

}  // namespace tangram
