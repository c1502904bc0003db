#include "agent/transition/walker.h"

#include <fmt/format.h>

#include <utility>

#include "agent/base/fault.h"
#include "agent/base/thread.h"
#include "agent/transition/prepare.h"
#include "agent/transition/status.h"

namespace tangram {
namespace {

const fault::Point kBetween("run.between_flips", fault::kErrors);
const fault::Point kBeforePermit("run.before_permit", fault::kErrors);

// Poll interval: engines count steps in shared memory and send no notification.
constexpr auto kLookAtSteps = std::chrono::milliseconds(1);
// Also detects stopped ranks.
constexpr auto kLookAgain = std::chrono::milliseconds(10);

Status Over() { return {Code::kUnavailable, "the run was interrupted"}; }

// The complete request of a later flip of a run.
v1::PrepareRequest Whole(const v1::PrepareRequest& first, const v1::PrepareRequest& next) {
  v1::PrepareRequest out = next;
  *out.mutable_geometry() = first.geometry();
  *out.mutable_peers() = first.peers();
  out.set_pause_steps(first.pause_steps());
  return out;
}

}  // namespace

Status Walker::Start(JobPtr first) {
  auto thread = StartThread(
      [this, first = std::move(first)](const std::stop_token& stop) { Work(first, stop); });
  if (!thread.ok()) return thread.status();
  // The previous thread has no more flips and waits for no call, so it ends soon.
  const std::scoped_lock lock(mu_);
  std::swap(thread.value(), thread_);
  return OkStatus();
}

void Walker::Interrupt() {
  const std::scoped_lock lock(mu_);
  thread_.request_stop();
}

void Walker::Work(const JobPtr& first, const std::stop_token& stop) {
  JobPtr now = first;
  for (const v1::PrepareRequest& request : first->request.next()) {
    // Built while `now` is staged and flips. An error is reported again in the flip's turn.
    const auto next = std::make_shared<Job>(Whole(first->request, request));
    next->asks_when_staged = true;
    (void)BuildTarget(*core_, next.get(), now->target);
    Status status = AwaitSteps(*now, stop);
    next->begun = ExecutorClock::now();
    if (status.ok()) status = Onward(*now, next, stop);
    if (!status.ok()) {
      (void)runner_->Run(attempt::RunStuck{next->id, status.message()});
      return;
    }
    now = next;
  }
}

Status Walker::Onward(const Job& now, const JobPtr& next, const std::stop_token& stop) {
  TANGRAM_RETURN_IF_ERROR(AsCall(stop, [&]() -> Status {
    TANGRAM_RETURN_IF_ERROR(
        runner_->Run(attempt::Retire{HeaderOf(now.request.header()), true}).status);
    TANGRAM_RETURN_IF_ERROR(fault::Check("run.between_flips"));
    CarryOver(core_, now, next.get());
    const attempt::Header header = HeaderOf(next->request.header());
    const attempt::Prepare prepare{header,
                                   attempt::Kind::kLayout,
                                   next->request.target_epoch(),
                                   next->request_hash,
                                   CheckGeometry(*core_, next->request),
                                   true};
    TANGRAM_RETURN_IF_ERROR(runner_->Run(prepare, {next, stop}).status);
    return runner_->Run(attempt::Stage{header}).status;
  }));
  TANGRAM_RETURN_IF_ERROR(AwaitStaged(*next, stop));
  return AsCall(stop, [&]() -> Status {
    TANGRAM_RETURN_IF_ERROR(fault::Check("run.before_permit"));
    return runner_->Run(attempt::Permit{HeaderOf(next->request.header()), true}).status;
  });
}

Status Walker::AwaitSteps(const Job& now, const std::stop_token& stop) {
  std::unique_lock lock(core_->mu);
  while (!stop.stop_requested()) {
    const auto* run = core_->machine.run();
    const auto* attempt = core_->machine.attempt();
    if (run == nullptr || run->over || attempt == nullptr || attempt->plan.attempt != now.id) {
      return Over();
    }
    const bool flipped = attempt->phase == attempt::Phase::kFlipped;
    bool stepped = flipped;
    const attempt::Gates looks = core_->Looks();
    for (const auto& [device, part] : attempt->parts) {
      if (looks[device].stopped) return {Code::kUnavailable, "a rank has stopped"};
      stepped = stepped && looks[device].steps >= 1;
    }
    if (stepped) return OkStatus();
    core_->changed.wait_for(lock, flipped ? kLookAtSteps : kLookAgain);
  }
  return Over();
}

Status Walker::AwaitStaged(const Job& next, const std::stop_token& stop) {
  std::unique_lock lock(core_->mu);
  while (!stop.stop_requested()) {
    const auto* run = core_->machine.run();
    const auto* attempt = core_->machine.attempt();
    if (run == nullptr || run->over || attempt == nullptr || attempt->plan.attempt != next.id) {
      return Over();
    }
    if (attempt->phase == attempt::Phase::kFailed) return {Code::kUnavailable, attempt->error};
    if (attempt->phase != attempt::Phase::kStaging) return OkStatus();
    core_->changed.wait_for(lock, kLookAgain);
  }
  return Over();
}

Status Walker::AsCall(const std::stop_token& stop, const std::function<Status()>& what) {
  // Never blocks on a driver call, which may wait for the end of this thread.
  std::unique_lock call(core_->calls, std::defer_lock);
  while (!call.try_lock()) {
    std::unique_lock lock(core_->mu);
    if (stop.stop_requested()) return Over();
    core_->changed.wait_for(lock, kLookAtSteps);
  }
  return what();
}

}  // namespace tangram
