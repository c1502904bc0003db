// How an attempt ends: the flip, the abort, the retirement of the old places.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/base/fault.h"
#include "agent/transition/executor.h"

namespace tangram {
namespace {

const fault::Point kFlipBefore("flip.before_commit", fault::kErrors);
const fault::Point kFlipAfter("flip.after_commit");
const fault::Point kAbortBefore("abort.before", fault::kErrors);
const fault::Point kRetireBefore("retire.before", fault::kErrors);
const fault::Point kRetireAfter("retire.after", fault::kErrors);

constexpr auto kAskPeers = std::chrono::milliseconds(100);

}  // namespace

Status Executor::FlipLocked(Attempt* attempt, uint32_t device, bool by_agents) {
  Rank& rank = ranks_[device];
  Part& part = attempt->parts.at(device);
  TANGRAM_RETURN_IF_ERROR(fault::Check("flip.before_commit"));
  TANGRAM_RETURN_IF_ERROR(rank.memory->Commit());
  // Who stands still may go on with this flip, unless its engine is gone.
  if (attempt->by_agents()) rank.gate.SetStopped(!engines_->Info(device).attached);
  // The state word moves last: who sees Flipped sees a rank whose memory is committed.
  TANGRAM_RETURN_IF_ERROR(rank.gate.Flip(attempt->id, attempt->target->epoch(), by_agents));
  rank.layout = attempt->target;
  rank.fresh = false;
  rank.rank = part.target_rank;
  part.flipped = true;
  flipped_.insert(attempt->id);
  const bool all = std::all_of(attempt->parts.begin(), attempt->parts.end(),
                               [](const auto& entry) { return entry.second.flipped; });
  if (all) {
    attempt->phase = v1::PHASE_FLIPPED;
    attempt->error.clear();
    attempt->flip_seconds =
        std::chrono::duration<double>(Clock::now() - attempt->permitted).count();
    peers_now_ = attempt->peers();
    spdlog::info("attempt {} flipped to epoch {}", attempt->id, attempt->target->epoch());
  }
  Changed();
  return OkStatus();
}

Status Executor::Flip(uint32_t device, const v1::EngineFlip& flip) {
  {
    const std::scoped_lock lock(mu_);
    TANGRAM_RETURN_IF_ERROR(CheckCurrent(flip.header(), "the engine's flip"));
    Attempt& attempt = *attempt_;
    const auto part = attempt.parts.find(device);
    if (part == attempt.parts.end()) {
      return {Code::kWrongPhase,
              fmt::format("device {} has no part in attempt {}", device, attempt.id)};
    }
    if (flip.target_hash() != attempt.target_hash) {
      return {Code::kBadPlan, "the engine's flip is to another layout than the attempt's"};
    }
    if (part->second.flipped) return OkStatus();  // repeated
    if (attempt.phase != v1::PHASE_PERMITTED || attempt.by_agents()) {
      return {Code::kWrongPhase,
              fmt::format("an engine's flip in {} of a {}", v1::Phase_Name(attempt.phase),
                          v1::FlipKind_Name(attempt.kind))};
    }
    if (ranks_[device].gate.state() != GateState::kLatched) {
      return {Code::kWrongPhase, "an engine's flip without its word"};
    }
    if (ranks_[device].gate.stopped()) {
      return {Code::kWrongPhase, "an engine's flip after it gave the step up"};
    }
    TANGRAM_RETURN_IF_ERROR(FlipLocked(&attempt, device, false));
  }
  // The flip is the outcome by now: a fault here may only kill or delay.
  (void)fault::Hit("flip.after_commit");
  return OkStatus();
}

bool Executor::AnyFlipped(const Attempt& attempt) const {
  return std::any_of(attempt.parts.begin(), attempt.parts.end(),
                     [](const auto& entry) { return entry.second.flipped; });
}

// Takes the permit back from every rank, or from none: with one rank latched, a withdrawal of
// another would break the go that the first may have seen.
bool Executor::TryWithdraw(Attempt* attempt) {
  std::vector<uint32_t> done;
  for (const auto& [device, part] : attempt->parts) {
    if (ranks_[device].gate.Withdraw(attempt->id) == AgentGate::Withdrawal::kWithdrawn) {
      done.push_back(device);
      continue;
    }
    // Idle and armed again is harmless to the engine: no word was given in between.
    for (const uint32_t d : done) {
      (void)ranks_[d].gate.Arm(attempt->id, attempt->target->epoch(), attempt->target_hash);
    }
    return false;
  }
  return true;
}

std::set<std::string> Executor::OtherAgents(const Attempt& attempt) {
  std::set<std::string> agents;
  for (const v1::PeerAddress& peer : attempt.request.peers()) agents.insert(peer.agent());
  const std::scoped_lock lock(mu_);
  agents.erase(address_.agent());
  return agents;
}

// Burned: some other agent gave the attempt up without a flip. Its word is then lost to the
// step that mine was for, so nobody can have gone: a fence (rule 2). Flipped: so every word was
// given.
Executor::PeersSay Executor::AskPeers(const Attempt& attempt) {
  v1::QueryRequest query;
  *query.mutable_header() = HeaderOf(attempt);
  bool burned = false, flipped = false;
  AskAll(peers_, OtherAgents(attempt), query, {},
         [&](const std::string&, const v1::QueryResponse& seen) {
           burned |= seen.phase() == v1::PHASE_IDLE && !seen.contributed();
           flipped |= seen.flipped();
           return flipped;
         });
  return flipped ? PeersSay::kFlipped : burned ? PeersSay::kBurned : PeersSay::kNothing;
}

void Executor::Release(const AttemptPtr& attempt, const std::string& reason, bool keep) {
  // Without mu_: waits for the stager, which may be waiting for an engine.
  stager_.request_stop();
  words_.request_stop();
  {
    const std::scoped_lock lock(mu_);  // who is about to wait sees the request or the wake-up
    changed_.notify_all();
  }
  if (stager_.joinable()) stager_.join();
  if (words_.joinable()) words_.join();
  v1::EngineAbort abort;
  *abort.mutable_header() = HeaderOf(*attempt);
  abort.set_reason(reason);
  abort.set_keep_mapped(keep);
  for (const auto& [device, part] : attempt->parts) {
    engines_->Abort(device, abort);
    if (keep) {
      ranks_[device].memory->Keep();
    } else {
      ranks_[device].memory->Abort();
    }
  }
  const std::scoped_lock lock(mu_);
  attempt->phase = v1::PHASE_IDLE;
  if (attempt->error.empty()) attempt->error = "aborted: " + reason;
  CountLocked(*attempt, "aborted");
  last_ = attempt;
  attempt_.reset();
  spdlog::info("attempt {} aborted: {}", attempt->id, reason);
  Changed();
}

Result<bool> Executor::Abort(const v1::Header& header, const std::string& reason) {
  const std::scoped_lock call(call_mu_);
  TANGRAM_RETURN_IF_ERROR(fault::Check("abort.before"));
  AttemptPtr attempt;
  std::unique_lock lock(mu_);
  if (header.world() != options_.world) {
    return Status{Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for "
                                                 "'{}'",
                                                 options_.world, header.world())};
  }
  if (!attempt_ || attempt_->id != header.attempt()) {
    if (attempt_ && header.attempt() > attempt_->id) {
      return Status{Code::kWrongPhase,
                    fmt::format("attempt {} is under way, not {}", attempt_->id, header.attempt())};
    }
    // Over, or never heard of: burned either way, so that it cannot begin any more.
    highest_ = std::max(highest_, header.attempt());
    return flipped_.contains(header.attempt());
  }
  attempt = attempt_;
  const auto deadline = Clock::now() + options_.abort_wait;
  while (true) {
    if (AnyFlipped(*attempt)) return true;
    if (attempt->phase != v1::PHASE_PERMITTED) break;
    const bool first = attempt->by_agents();
    if (!first && TryWithdraw(attempt.get())) break;
    lock.unlock();
    const PeersSay say = AskPeers(*attempt);
    const bool fenced = say == PeersSay::kBurned;
    lock.lock();
    if (first && say == PeersSay::kFlipped) {
      // A word that only the others have, of one that died since, never comes here.
      for (int rank = 0; rank < attempt->target->members_size(); ++rank) {
        attempt->words.insert(static_cast<uint32_t>(rank));
      }
      FlipByWordsLocked(attempt.get());
    }
    if (AnyFlipped(*attempt)) return true;
    // An engine that lives may still be between its go and its commit; only one that is gone
    // (or a first flip, which has none) is resolved by the fence.
    bool alive = false;
    if (fenced && !first) {
      for (const auto& [device, part] : attempt->parts) {
        if (ranks_[device].gate.state() != GateState::kLatched) continue;
        lock.unlock();
        const EngineInfo engine = engines_->Info(device);
        lock.lock();
        alive |= engine.attached && engine.incarnation == ranks_[device].incarnation;
      }
    }
    if (fenced && !alive && !AnyFlipped(*attempt)) {
      for (const auto& [device, part] : attempt->parts) ranks_[device].gate.Fence();
      break;
    }
    if (Clock::now() >= deadline) {
      return Status{Code::kUnavailable,
                    fmt::format("attempt {}: a word was given and its outcome is not known after "
                                "{} ms; ask again",
                                attempt->id, options_.abort_wait.count())};
    }
    changed_.wait_for(lock, kAskPeers);
  }
  attempt->phase = v1::PHASE_FAILED;  // no flip from here on
  lock.unlock();
  Release(attempt, reason);
  return false;
}

Status Executor::Retire(const v1::Header& header) {
  const std::scoped_lock call(call_mu_);
  AttemptPtr attempt;
  {
    const std::scoped_lock lock(mu_);
    if (!attempt_ && last_ && last_->id == header.attempt() && flipped_.contains(last_->id) &&
        header.world() == options_.world) {
      return OkStatus();  // repeated
    }
    TANGRAM_RETURN_IF_ERROR(CheckCurrent(header, "Retire"));
    attempt = attempt_;
    if (attempt->phase != v1::PHASE_FLIPPED) {
      return {Code::kWrongPhase, fmt::format("Retire of attempt {} in {}", attempt->id,
                                             v1::Phase_Name(attempt->phase))};
    }
    for (const auto& [device, part] : attempt->parts) {
      if (part.leaving) continue;
      const uint64_t steps = ranks_[device].gate.page()->steps.load(std::memory_order_acquire);
      if (steps == 0) {
        return {Code::kWrongPhase,
                fmt::format("rank {} has not finished a step of epoch {}; its old places are still "
                            "sources for repair, ask again",
                            part.target_rank, attempt->target->epoch())};
      }
    }
  }
  TANGRAM_RETURN_IF_ERROR(fault::Check("retire.before"));
  for (const auto& [device, part] : attempt->parts) {
    v1::EngineUnmap unmap;
    *unmap.mutable_header() = HeaderOf(*attempt);
    for (v1::Mapping& m : ranks_[device].memory->DroppedMappings()) {
      *unmap.add_mappings() = std::move(m);
    }
    if (unmap.mappings_size() > 0 && engines_->Info(device).attached) {
      const Status status = engines_->Unmap(device, unmap);
      // An engine that is gone has no mappings; one that does not answer keeps read-only
      // views of pages that it has no layout for, which harms nobody but its own reading.
      if (!status.ok()) spdlog::warn("unmap on device {}: {}", device, status.message());
    }
    TANGRAM_RETURN_IF_ERROR(ranks_[device].memory->Retire());
  }
  // The stager may still be asking a peer for the permit: Stage waits for its end, nobody here.
  stager_.request_stop();
  words_.request_stop();
  changed_.notify_all();
  if (words_.joinable()) words_.join();
  {
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
    last_ = attempt;
    attempt_.reset();
    Changed();
  }
  for (uint32_t device = 0; device < ranks_.size(); ++device) {
    if (ranks_[device].removed) ReleaseRank(device, "a repair went on without it");
  }
  return fault::Check("retire.after");
}

void Executor::EngineGone(uint32_t device) {
  const std::scoped_lock lock(mu_);
  if (ranks_[device].rank >= 0) ranks_[device].gate.SetStopped(true);
  if (attempt_ && attempt_->kind != v1::FLIP_KIND_FIRST && attempt_->parts.contains(device) &&
      (attempt_->phase == v1::PHASE_PREPARED || attempt_->phase == v1::PHASE_STAGING ||
       attempt_->phase == v1::PHASE_STAGED)) {
    Fail(attempt_.get(), fmt::format("the engine of device {} left", device));
  }
  Changed();
}

}  // namespace tangram
