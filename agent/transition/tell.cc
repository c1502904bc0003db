#include "agent/transition/tell.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace tangram {
namespace {

// Applies marks, under the core's lock.
class Marks {
 public:
  explicit Marks(Core* core) : core_(core) {}

  void operator()(const attempt::SetStopped& mark) const {
    core_->ranks[mark.device].gate.SetStopped(mark.stopped);
  }
  void operator()(const attempt::FenceGate& mark) const { core_->ranks[mark.device].gate.Fence(); }
  void operator()(const attempt::ResetGate& mark) const {
    core_->ranks[mark.device].gate.Reset(mark.attempt);
  }
  void operator()(const attempt::Leave& mark) const {
    Core::Rank& rank = core_->ranks[mark.device];
    rank.layout.reset();
    rank.layout_hash.clear();
    rank.gate.SetEpoch(0);
  }
  void operator()(const attempt::AllFlipped& mark) const {
    Job& job = *core_->JobOf(mark.attempt);
    core_->peers_now = job.peers();
    if (mark.by == attempt::By::kForward) return;
    job.flip_seconds = std::chrono::duration<double>(ExecutorClock::now() - job.permitted).count();
  }
  void operator()(const attempt::Ended& mark) const {
    ExecutorTotals& totals = core_->totals;
    if (mark.end == attempt::End::kRefused) {
      ++totals.outcomes["refused"];
      return;
    }
    ++totals.outcomes[mark.end == attempt::End::kFlipped ? "flipped" : "aborted"];
    const Job& job = *core_->JobOf(mark.attempt);
    totals.prepare_seconds += job.prepare_seconds;
    totals.stage_seconds += job.stage_seconds;
    totals.flip_seconds += job.flip_seconds;
    for (const auto& [device, part] : job.parts) {
      totals.local += part.progress.local;
      totals.checkpoint += part.progress.checkpoint;
      totals.corrupt += part.progress.corrupt;
      totals.kv_ahead += part.kv_ahead_bytes;
      for (const auto& [way, bytes] : part.progress.weights_by_way.Get()) {
        totals.weights_by_way[way] += bytes;
      }
      for (const auto& [way, bytes] : part.progress.kv_by_way.Get()) totals.kv_by_way[way] += bytes;
    }
  }

 private:
  Core* const core_;
};

Status ArmAll(Core* core, Job* job) {
  std::vector<uint32_t> armed;
  for (const auto& [device, part] : job->parts) {
    Status status = core->ranks[device].gate.Arm(job->id, job->target->epoch(), job->target_hash);
    if (!status.ok()) {
      for (const uint32_t d : armed) (void)core->ranks[d].gate.Withdraw(job->id);
      return status;
    }
    armed.push_back(device);
  }
  job->permitted = ExecutorClock::now();
  return OkStatus();
}

// Withdraws the permit of every rank, or of none: while one rank is latched, withdrawing another
// would break a go that the first may have seen.
bool TakeBackAll(Core* core, const Job& job) {
  std::vector<uint32_t> done;
  for (const auto& [device, part] : job.parts) {
    AgentGate& gate = core->ranks[device].gate;
    if (gate.Withdraw(job.id) == AgentGate::Withdrawal::kWithdrawn) {
      done.push_back(device);
      continue;
    }
    // Re-arming is harmless to the engine: it has not voted in between.
    for (const uint32_t d : done) {
      (void)core->ranks[d].gate.Arm(job.id, job.target->epoch(), job.target_hash);
    }
    return false;
  }
  return true;
}

// A gate shows Flipped only after the rank's memory is committed.
Status FlipOne(Core* core, const Job& job, const attempt::FlipGate& flip) {
  Core::Rank& rank = core->ranks[flip.device];
  const bool forward = flip.by == attempt::By::kForward;
  const uint64_t epoch = job.target->epoch();
  TANGRAM_RETURN_IF_ERROR(forward ? rank.gate.FlipStopped(job.id, epoch)
                                  : rank.gate.Flip(job.id, epoch, job.by_agents()));
  rank.layout = job.target;
  rank.layout_hash = job.target_hash;
  if (!forward) rank.fresh = false;
  return OkStatus();
}

void Print(const std::vector<attempt::Line>& lines) {
  using enum attempt::Line::Level;
  for (const attempt::Line& line : lines) {
    const auto level = line.level == kInfo   ? spdlog::level::info
                       : line.level == kWarn ? spdlog::level::warn
                                             : spdlog::level::err;
    spdlog::log(level, "{}", line.text);
  }
}

// Fills the parts of an attempt that has begun.
void FillParts(Core* core, uint64_t attempt) {
  Job& job = *core->JobOf(attempt);
  for (const auto& [device, part] : core->machine.attempt()->parts) {
    Job::Part& out = job.parts[device];
    out.target_rank = part.target_rank;
    out.joining = part.joining;
    out.leaving = part.leaving;
    const std::string& member = core->ranks[device].member.id();
    const auto& asked = job.request.parts();
    out.part = *std::find_if(asked.begin(), asked.end(),
                             [&](const v1::RankPart& named) { return named.member() == member; });
  }
}

// Removes jobs that can no longer be queried.
void Forget(Core* core, std::vector<JobPtr>* over) {
  for (auto job = core->jobs.begin(); job != core->jobs.end();) {
    if (core->machine.Knows(job->first)) {
      ++job;
      continue;
    }
    over->push_back(std::move(job->second));
    job = core->jobs.erase(job);
  }
}

// Does the action and returns its result.
attempt::Event DoAtOnce(Core* core, const attempt::AtOnce& next) {
  if (const auto* arm = std::get_if<attempt::Arm>(&next)) {
    Status armed = ArmAll(core, core->JobOf(arm->attempt).get());
    return attempt::Armed{arm->attempt, arm->forward, std::move(armed)};
  }
  if (const auto* back = std::get_if<attempt::TakeBack>(&next)) {
    return attempt::TakenBack{back->attempt, TakeBackAll(core, *core->JobOf(back->attempt))};
  }
  const auto& flip = std::get<attempt::FlipGate>(next);
  Status flipped = FlipOne(core, *core->JobOf(flip.attempt), flip);
  return attempt::GateFlipped{flip.attempt, flip.device, flip.by, std::move(flipped)};
}

}  // namespace

attempt::Later Tell(Core* core, const attempt::Event& event, uint64_t* seen) {
  std::vector<attempt::Line> lines;
  std::vector<JobPtr> over;  // freed without the lock
  attempt::Next next;
  {
    const std::scoped_lock lock(core->mu);
    attempt::Event now = event;
    while (true) {
      attempt::Step step = core->machine.On(now, core->Looks());
      for (const attempt::Mark& mark : step.marks) std::visit(Marks(core), mark);
      lines.insert(lines.end(), step.lines.begin(), step.lines.end());
      if (step.changed) core->Changed();
      next = std::move(step.next);
      const auto* at_once = std::get_if<attempt::AtOnce>(&next);
      if (at_once == nullptr) break;
      now = DoAtOnce(core, *at_once);
    }
    Forget(core, &over);
    if (const auto* built = std::get_if<attempt::Built>(&event)) {
      const uint64_t id = built->plan.attempt;
      if (core->machine.Knows(id)) FillParts(core, id);
    }
    if (seen != nullptr) *seen = core->version;
  }
  Print(lines);
  return std::get<attempt::Later>(std::move(next));
}

}  // namespace tangram
