#include "agent/transition/core.h"

#include <utility>

namespace tangram {
namespace {

std::vector<std::string> MembersOf(const std::vector<LocalRank>& ranks) {
  std::vector<std::string> out;
  for (const LocalRank& rank : ranks) out.push_back(rank.member.id());
  return out;
}

}  // namespace

Job::Job(const v1::PrepareRequest& asked)
    : request(asked), id(asked.header().attempt()), request_hash(layout::WireHash(asked)) {}

uint64_t Job::run_last() const {
  return request.next_size() > 0 ? id + static_cast<uint64_t>(request.next_size()) : 0;
}

Core::Core(ExecutorOptions given, layout::GeometryView shape, std::vector<LocalRank> locals,
           Engines* attached, Peers* others)
    : options(std::move(given)),
      geometry(std::move(shape)),
      engines(attached),
      peers(others),
      machine(options.world, options.abort_wait, MembersOf(locals)),
      address(options.address) {
  for (LocalRank& local : locals) {
    Rank& rank = ranks.emplace_back();
    rank.member = std::move(local.member);
    rank.memory = local.memory;
    rank.gate = AgentGate(static_cast<GatePage*>(local.memory->Regions().control_page),
                          geometry.moe_layers(), geometry.experts());
    if (options.max_step_stretch > 0)
      rank.pace = std::make_unique<StepPace>(options.max_step_stretch);
    rank.awaited = options.after_death;
  }
}

StepPace* Core::PaceOf(const Job& job, uint32_t device) const {
  // If no step is computed, none can take longer.
  return job.by_agents() || job.request.pause_steps() ? nullptr : ranks[device].pace.get();
}

void Core::Changed() {
  ++version;
  changed.notify_all();
}

void Core::Wake() {
  const std::scoped_lock lock(mu);  // otherwise a thread that is about to wait could miss it
  changed.notify_all();
}

bool Core::WaitChange(uint64_t* seen, std::chrono::milliseconds limit) {
  std::unique_lock lock(mu);
  const bool news = changed.wait_for(lock, limit, [&] { return version != *seen; });
  *seen = version;
  return news;
}

attempt::Gates Core::Looks() const {
  attempt::Gates out;
  for (const Rank& rank : ranks) {
    out.push_back({rank.gate.state(), rank.gate.stopped(),
                   rank.gate.page()->steps.load(std::memory_order_acquire)});
  }
  return out;
}

const Core::Rank* Core::InForce() const {
  const auto device = machine.InForce();
  return device ? &ranks[*device] : nullptr;
}

JobPtr Core::JobOf(uint64_t attempt) const {
  const auto job = jobs.find(attempt);
  return job == jobs.end() ? nullptr : job->second;
}

const attempt::Machine::Attempt* Core::Shown() const {
  return machine.attempt() != nullptr ? machine.attempt() : machine.last();
}

attempt::Header HeaderOf(const v1::Header& header) {
  return {header.world(), header.epoch(), header.attempt()};
}

static_assert(static_cast<int>(attempt::Phase::kFailed) == v1::PHASE_FAILED &&
              static_cast<int>(attempt::Phase::kPermitted) == v1::PHASE_PERMITTED &&
              static_cast<int>(attempt::Kind::kRepair) == v1::FLIP_KIND_REPAIR &&
              static_cast<int>(attempt::Kind::kJoin) == v1::FLIP_KIND_JOIN &&
              static_cast<int>(attempt::Outcome::kHold) == v1::OUTCOME_HOLD &&
              static_cast<int>(attempt::Outcome::kStay) == v1::OUTCOME_ABORT);

v1::Phase ToWire(attempt::Phase phase) { return static_cast<v1::Phase>(phase); }

}  // namespace tangram
