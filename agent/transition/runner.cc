#include "agent/transition/runner.h"

#include <utility>
#include <vector>

#include "agent/transition/end.h"
#include "agent/transition/prepare.h"
#include "agent/transition/stager.h"
#include "agent/transition/tell.h"
#include "agent/transition/walker.h"
#include "agent/transition/words.h"

namespace tangram {
namespace {

// Poll interval of a waiting call.
constexpr auto kLookAgain = std::chrono::milliseconds(100);

}  // namespace

// Progress of a call.
struct Runner::Progress {
  const attempt::Event& event;
  const Call& call;
  ExecutorClock::time_point begun = ExecutorClock::now();
  uint64_t seen = 0;  // the core's version after the last event
};

Runner::Runner(Core* core)
    : core_(core),
      words_(std::make_unique<Words>(core, this)),
      stager_(std::make_unique<Stager>(core, this)),
      walker_(std::make_unique<Walker>(core, this)) {}

Runner::~Runner() {
  std::vector<JobPtr> jobs;
  {
    const std::scoped_lock lock(core_->mu);
    for (const auto& [id, job] : core_->jobs) jobs.push_back(job);
  }
  for (const JobPtr& job : jobs) job->stop.request_stop();
  walker_->Interrupt();
  core_->Wake();
}

void Runner::Interrupt(uint64_t attempt) {
  {
    const std::scoped_lock lock(core_->mu);
    const auto* run = core_->machine.run();
    if (run == nullptr || run->over || attempt < run->first) return;
  }
  walker_->Interrupt();
}

attempt::Answer Runner::Run(const attempt::Event& event) { return Run(event, {}); }

attempt::Answer Runner::Run(const attempt::Event& event, const Call& call) {
  Progress progress{.event = event, .call = call};
  attempt::Event now = event;
  while (true) {
    const attempt::Later next = Tell(core_, now, &progress.seen);
    End end = std::visit([&](const auto& what) { return Do(what, progress); }, next);
    if (auto* answer = std::get_if<attempt::Answer>(&end)) return std::move(*answer);
    now = std::get<attempt::Event>(std::move(end));
  }
}

JobPtr Runner::JobOf(uint64_t attempt) {
  const std::scoped_lock lock(core_->mu);
  return core_->JobOf(attempt);
}

JobPtr Runner::Stop(uint64_t attempt) {
  JobPtr job = JobOf(attempt);
  job->stop.request_stop();
  core_->Wake();
  return job;
}

Runner::End Runner::Do(const attempt::Answer& next, const Progress&) { return next; }

Runner::End Runner::Do(const attempt::Build&, const Progress& progress) {
  const JobPtr& job = progress.call.job;
  std::shared_ptr<const v1::Layout> base;
  std::vector<std::string> members;
  {
    const std::scoped_lock lock(core_->mu);
    if (const Core::Rank* rank = core_->InForce()) base = rank->layout;
    for (const Core::Rank& rank : core_->ranks) members.push_back(rank.member.id());
  }
  auto plan = Build(*core_, job.get(), base, members);
  if (!plan.ok()) return attempt::Answer{plan.status()};
  const std::scoped_lock lock(core_->mu);
  core_->jobs[job->id] = job;
  return attempt::Built{std::move(*plan)};
}

Runner::End Runner::Do(const attempt::KeepOld& next, const Progress&) {
  const JobPtr job = Stop(next.attempt);
  words_->Join();
  KeepOldPlaces(core_, *job);
  return attempt::Kept{next.attempt};
}

Runner::End Runner::Do(const attempt::Reserve& next, const Progress& progress) {
  const JobPtr& job = progress.call.job;
  Status status = Reserve(core_, job.get(), progress.call.stop);
  const std::scoped_lock lock(core_->mu);
  job->prepare_seconds = std::chrono::duration<double>(ExecutorClock::now() - job->begun).count();
  return attempt::Reserved{next.attempt, std::move(status)};
}

Runner::End Runner::Do(const attempt::StartStaging& next, const Progress&) {
  const JobPtr job = JobOf(next.attempt);
  Status started = job->run_last() != 0 ? walker_->Start(job) : OkStatus();
  if (started.ok()) started = stager_->Start(job);
  if (!started.ok()) return attempt::Staged{next.attempt, std::move(started)};
  return attempt::Begun{next.attempt};
}

Runner::End Runner::Do(const attempt::TellWords& next, const Progress&) {
  // Without its thread no votes are sent: an abort then finds that no other agent has flipped.
  if (Status started = words_->Start(JobOf(next.attempt)); !started.ok()) {
    return attempt::Answer{std::move(started)};
  }
  return attempt::Begun{next.attempt};
}

Runner::End Runner::Do(const attempt::Commit& next, const Progress&) {
  attempt::Committed end{.attempt = next.attempt,
                         .devices = next.devices,
                         .by = next.by,
                         .status = {},
                         .attached = {}};
  for (const uint32_t device : next.devices) {
    end.status = CommitMemory(core_, device);
    if (!end.status.ok()) break;
    ++end.done;
    // An engine that flips is attached.
    const bool asks = next.by != attempt::By::kEngine;
    if (asks && core_->engines->Info(device).attached) end.attached.insert(device);
  }
  return end;
}

Runner::End Runner::Do(const attempt::AskPeers& next, const Progress& progress) {
  attempt::PeersSaid said = AskPeersOf(core_, *JobOf(next.attempt), progress.call.stop);
  said.expired = progress.call.stop.stop_requested() ||
                 ExecutorClock::now() - progress.begun >= core_->options.abort_wait;
  return said;
}

Runner::End Runner::Do(const attempt::Drop& next, const Progress&) {
  const JobPtr job = Stop(next.attempt);
  stager_->Join();  // it may wait for an engine
  words_->Join();
  DropAttempt(core_, *job, next.reason, next.keep);
  return attempt::Dropped{next.attempt};
}

Runner::End Runner::Do(const attempt::ReturnOld& next, const Progress&) {
  Status status = ReturnOldPlaces(core_, *JobOf(next.attempt));
  if (status.ok()) {
    // The stager may still query a peer for the permit. The next Stage waits for it, not this call.
    (void)Stop(next.attempt);
    words_->Join();
  }
  return attempt::Returned{next.attempt, std::move(status)};
}

Runner::End Runner::Do(const attempt::Dismiss& next, const Progress&) {
  core_->engines->Dismiss(next.device, next.reason);
  return attempt::Dismissed{next.device};
}

Runner::End Runner::Do(const attempt::Empty& next, const Progress&) {
  {
    const std::scoped_lock lock(core_->mu);
    Core::Rank& rank = core_->ranks[next.device];
    rank.member.set_id(next.member);
    rank.fresh = false;
  }
  core_->ranks[next.device].memory->Reset(next.member);
  return attempt::Emptied{next.device};
}

Runner::End Runner::Do(const attempt::Wait&, const Progress& progress) {
  uint64_t seen = progress.seen;
  (void)core_->WaitChange(&seen, kLookAgain);
  return progress.event;
}

}  // namespace tangram
