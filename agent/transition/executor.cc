#include "agent/transition/executor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "agent/base/background.h"
#include "agent/base/fault.h"

namespace tangram {
namespace {

const fault::Point kStageBefore("stage.before", fault::kErrors);
const fault::Point kStageBeforeMap("stage.before_engine_map", fault::kErrors);
const fault::Point kStageAfter("stage.after", fault::kErrors);
const fault::Point kPermitBefore("permit.before_arm", fault::kErrors);
const fault::Point kPermitAfter("permit.after_arm", fault::kErrors);

}  // namespace

Executor::Executor(Options options, layout::GeometryView geometry, std::vector<Local> ranks,
                   Engines* engines, Peers* peers)
    : options_(std::move(options)),
      geometry_(std::move(geometry)),
      engines_(engines),
      peers_(peers),
      address_(options_.address) {
  for (Local& local : ranks) {
    Rank& rank = ranks_.emplace_back();
    rank.member = std::move(local.member);
    rank.memory = local.memory;
    rank.gate = AgentGate(static_cast<GatePage*>(local.memory->Regions().control),
                          geometry_.moe_layers(), geometry_.experts());
    rank.awaited = options_.after_death;
  }
  resume_until_ = options_.now() + options_.resume_wait;
}

Executor::~Executor() {
  stager_.request_stop();
  words_.request_stop();
  {
    const std::scoped_lock lock(mu_);  // who is about to wait sees the request or the wake-up
    changed_.notify_all();
  }
  // First: it may be about to start the words.
  if (stager_.joinable()) stager_.join();
}

void Executor::SetAddress(const std::string& agent) {
  const std::scoped_lock lock(mu_);
  address_.set_agent(agent);
}

void Executor::SetCheckpointError(const std::string& why) {
  const std::scoped_lock lock(mu_);
  if (checkpoint_error_ == why) return;
  checkpoint_error_ = why;
  Changed();
}

void Executor::Changed() {
  ++version_;
  changed_.notify_all();
}

bool Executor::WaitChange(uint64_t* seen, std::chrono::milliseconds limit) {
  std::unique_lock lock(mu_);
  const bool changed = changed_.wait_for(lock, limit, [&] { return version_ != *seen; });
  *seen = version_;
  return changed;
}

uint64_t Executor::EpochLocked() const {
  const auto layout = LayoutLocked();
  return layout ? layout->epoch() : 0;
}

// The lowest epoch of the ranks in the world: what is in force here for all of them. With
// none in the world, that of leavers which still hold their places.
std::shared_ptr<const v1::Layout> Executor::LayoutLocked() const {
  std::shared_ptr<const v1::Layout> member, left;
  for (const Rank& rank : ranks_) {
    if (!rank.layout) continue;
    auto& best = rank.rank >= 0 ? member : left;
    if (!best || rank.layout->epoch() < best->epoch()) best = rank.layout;
  }
  return member ? member : left;
}

const std::string& Executor::HashLocked(const std::shared_ptr<const v1::Layout>& layout) {
  if (hashed_ != layout) {
    hashed_ = layout;
    hash_ = layout::HashOf(*layout);
  }
  return hash_;
}

v1::Header Executor::Current() {
  const std::scoped_lock lock(mu_);
  v1::Header header;
  header.set_world(options_.world);
  header.set_epoch(EpochLocked());
  header.set_attempt(highest_);
  return header;
}

v1::Header Executor::HeaderOf(const Attempt& attempt) const { return attempt.request.header(); }

Status Executor::CheckCurrent(const v1::Header& header, const char* call) {
  if (header.world() != options_.world) {
    return {Code::kWrongWorld, fmt::format("this agent serves world '{}', the call is for '{}'",
                                           options_.world, header.world())};
  }
  if (!attempt_ || attempt_->id != header.attempt()) {
    if (header.attempt() > highest_) {
      return {Code::kWrongPhase,
              fmt::format("{} of attempt {}, which was not prepared here", call, header.attempt())};
    }
    return {Code::kStaleAttempt,
            fmt::format("{} of attempt {}: {}", call, header.attempt(),
                        attempt_ ? fmt::format("attempt {} is under way", attempt_->id)
                                 : fmt::format("none is under way, the highest "
                                               "seen is {}",
                                               highest_))};
  }
  const uint64_t from = attempt_->request.header().epoch();
  if (header.epoch() != from && header.epoch() != from + 1) {
    return {Code::kStaleEpoch, fmt::format("{} of attempt {} is from epoch {}, the call says {}",
                                           call, attempt_->id, from, header.epoch())};
  }
  return OkStatus();
}

Status Executor::Stage(const v1::Header& header) {
  const std::scoped_lock call(call_mu_);
  // The stager of the attempt before; it may want mu_ before it ends.
  std::jthread before;
  const std::scoped_lock lock(mu_);
  TANGRAM_RETURN_IF_ERROR(CheckCurrent(header, "Stage"));
  if (attempt_->phase == v1::PHASE_FAILED) {
    return {Code::kWrongPhase, "the attempt failed, abort it: " + attempt_->error};
  }
  if (attempt_->phase != v1::PHASE_PREPARED) return OkStatus();  // repeated
  attempt_->phase = v1::PHASE_STAGING;
  Changed();
  before = std::exchange(stager_, {});
  stager_ = std::jthread(
      [this, attempt = attempt_](std::stop_token stop) { RunStage(attempt, std::move(stop)); });
  return OkStatus();
}

Status Executor::StagePart(Attempt* attempt, uint32_t device, std::stop_token stop) {
  Part& part = attempt->parts.at(device);
  Rank& rank = ranks_[device];
  Origins origins{attempt->peers(), nullptr};
  {
    const std::scoped_lock lock(mu_);
    origins.before = LayoutLocked();
  }
  TANGRAM_RETURN_IF_ERROR(rank.memory->Stage(HeaderOf(*attempt), origins, &part.progress, stop));
  if (attempt->carries_kv) rank.memory->WarmKv(HeaderOf(*attempt), attempt->peers());
  TANGRAM_RETURN_IF_ERROR(fault::Check("stage.before_engine_map"));
  const EngineInfo engine = engines_->Info(device);
  if (!engine.attached || engine.incarnation != rank.incarnation) return OkStatus();
  v1::EngineMap map;
  *map.mutable_header() = HeaderOf(*attempt);
  for (v1::Mapping& mapping : rank.memory->NewMappings()) *map.add_mappings() = std::move(mapping);
  return engines_->Map(device, map, std::move(stop));
}

void Executor::RunStage(AttemptPtr attempt, std::stop_token stop) {
  const auto begun = Clock::now();
  std::mutex error_mu;
  Status error = fault::Check("stage.before");
  if (error.ok()) {
    // Ranks of one pod stage side by side: they pull from each other too.
    std::vector<std::jthread> workers;
    for (const auto& [device, part] : attempt->parts) {
      workers.emplace_back([&, device = device] {
        YieldToServing();
        Status status = StagePart(attempt.get(), device, stop);
        const std::scoped_lock lock(error_mu);
        if (!status.ok() && error.ok()) {
          error = {status.code(), fmt::format("device {}: {}", device, status.message())};
        }
      });
    }
  }
  if (error.ok()) error = fault::Check("stage.after");
  {
    const std::scoped_lock lock(mu_);
    attempt->stage_seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    if (attempt->phase != v1::PHASE_STAGING) return;  // aborted, or failed meanwhile
    if (!error.ok()) {
      Fail(attempt.get(), error.message());
      return;
    }
    attempt->phase = v1::PHASE_STAGED;
    Changed();
  }
  AwaitPermit(attempt, stop);
}

void Executor::Fail(Attempt* attempt, const std::string& error) {
  attempt->phase = v1::PHASE_FAILED;
  attempt->error = error;
  spdlog::warn("attempt {} failed before the flip: {}", attempt->id, error);
  Changed();
}

Status Executor::Permit(const v1::Header& header) {
  const std::scoped_lock call(call_mu_);
  TANGRAM_RETURN_IF_ERROR(fault::Check("permit.before_arm"));
  {
    const std::scoped_lock lock(mu_);
    TANGRAM_RETURN_IF_ERROR(CheckCurrent(header, "Permit"));
    Attempt& attempt = *attempt_;
    if (attempt.phase == v1::PHASE_PERMITTED || attempt.phase == v1::PHASE_FLIPPED) {
      return OkStatus();  // repeated
    }
    TANGRAM_RETURN_IF_ERROR(PermitLocked(&attempt));
  }
  return fault::Check("permit.after_arm");
}

Status Executor::PermitLocked(Attempt* attempt) {
  if (attempt->phase != v1::PHASE_STAGED) {
    return {Code::kWrongPhase,
            fmt::format("Permit of attempt {} in {}{}", attempt->id, v1::Phase_Name(attempt->phase),
                        attempt->error.empty() ? "" : ": " + attempt->error)};
  }
  std::vector<uint32_t> armed;
  for (const auto& [device, part] : attempt->parts) {
    Status status =
        ranks_[device].gate.Arm(attempt->id, attempt->target->epoch(), attempt->target_hash);
    if (!status.ok()) {
      for (const uint32_t d : armed) (void)ranks_[d].gate.Withdraw(attempt->id);
      return status;
    }
    armed.push_back(device);
  }
  attempt->phase = v1::PHASE_PERMITTED;
  attempt->permitted = Clock::now();
  if (attempt->by_agents()) {
    for (const auto& [device, part] : attempt->parts) {
      attempt->words.insert(static_cast<uint32_t>(part.target_rank));
    }
    attempt->contributed = true;
    words_ =
        std::jthread([this, a = attempt_](std::stop_token stop) { RunWords(a, std::move(stop)); });
  }
  Changed();
  return OkStatus();
}

}  // namespace tangram
