#include "agent/transition/executor.h"

#include <utility>

#include "agent/base/fault.h"
#include "agent/transition/core.h"
#include "agent/transition/prepare.h"
#include "agent/transition/pulls.h"
#include "agent/transition/resume.h"
#include "agent/transition/runner.h"
#include "agent/transition/status.h"

namespace tangram {
namespace {

const fault::Point kPrepareBefore("prepare.before", fault::kErrors);
const fault::Point kPrepareAfter("prepare.after", fault::kErrors);
const fault::Point kPermitBefore("permit.before_arm", fault::kErrors);
const fault::Point kPermitAfter("permit.after_arm", fault::kErrors);
const fault::Point kFlipAfter("flip.after_commit");
const fault::Point kAbortBefore("abort.before", fault::kErrors);
const fault::Point kRetireAfter("retire.after", fault::kErrors);
const fault::Point kResolveBefore("resolve.before", fault::kErrors);
const fault::Point kResolveAfter("resolve.after", fault::kErrors);
const fault::Point kReleaseBefore("release.before", fault::kErrors);

template <typename Strings>
std::vector<std::string> ListOf(const Strings& strings) {
  return {strings.begin(), strings.end()};
}

// A kind that the wire does not define is invalid.
attempt::Kind KindOf(v1::FlipKind kind) {
  return v1::FlipKind_IsValid(kind) ? static_cast<attempt::Kind>(kind)
                                    : static_cast<attempt::Kind>(UINT8_MAX);
}

attempt::Outcome OutcomeOf(v1::Outcome outcome) {
  return v1::Outcome_IsValid(outcome) ? static_cast<attempt::Outcome>(outcome)
                                      : attempt::Outcome::kUnspecified;
}

// After a call that changed something, checks the fault point, whose error then is the reply.
Status Passing(const attempt::Answer& answer, const char* point) {
  return answer.status.ok() && answer.acted ? fault::Check(point) : answer.status;
}

}  // namespace

struct Executor::Parts {
  // Another attempt begins, which ends an earlier run. A repeated call belongs to the run itself.
  void InterruptBefore(uint64_t attempt) {
    uint64_t last = 0;
    {
      const std::scoped_lock lock(core.mu);
      if (core.machine.run() != nullptr) last = core.machine.run()->last;
    }
    if (attempt > last) runner.Interrupt(attempt);
  }

  Core core;
  Runner runner{&core};
  Resumption resumption{&core, &runner};
};

Executor::Executor(Options options, layout::GeometryView geometry, std::vector<Local> ranks,
                   Engines* engines, Peers* peers)
    : parts_(new Parts{
          .core{std::move(options), std::move(geometry), std::move(ranks), engines, peers}}) {}

Executor::~Executor() = default;

void Executor::SetAddress(const std::string& agent) {
  const std::scoped_lock lock(parts_->core.mu);
  parts_->core.address.set_agent(agent);
}

void Executor::SetCheckpointError(const std::string& why) {
  Core& core = parts_->core;
  const std::scoped_lock lock(core.mu);
  if (core.checkpoint_error == why) return;
  core.checkpoint_error = why;
  core.Changed();
}

Status Executor::Prepare(const v1::PrepareRequest& request, std::stop_token stop) {
  Core& core = parts_->core;
  parts_->InterruptBefore(request.header().attempt());
  const std::scoped_lock call(core.calls);
  TANGRAM_RETURN_IF_ERROR(fault::Check("prepare.before"));
  const auto job = std::make_shared<Job>(request);
  const attempt::Prepare event{HeaderOf(request.header()), KindOf(request.kind()),
                               request.target_epoch(), job->request_hash,
                               CheckGeometry(core, request)};
  return Passing(parts_->runner.Run(event, {job, std::move(stop)}), "prepare.after");
}

Status Executor::Stage(const v1::Header& header) {
  const std::scoped_lock call(parts_->core.calls);
  return parts_->runner.Run(attempt::Stage{HeaderOf(header)}).status;
}

Status Executor::Permit(const v1::Header& header) {
  const std::scoped_lock call(parts_->core.calls);
  TANGRAM_RETURN_IF_ERROR(fault::Check("permit.before_arm"));
  return Passing(parts_->runner.Run(attempt::Permit{HeaderOf(header)}), "permit.after_arm");
}

Result<bool> Executor::Abort(const v1::Header& header, const std::string& reason,
                             std::stop_token stop) {
  parts_->runner.Interrupt(header.attempt());
  const std::scoped_lock call(parts_->core.calls);
  TANGRAM_RETURN_IF_ERROR(fault::Check("abort.before"));
  const attempt::Answer answer =
      parts_->runner.Run(attempt::Abort{HeaderOf(header), reason}, {nullptr, std::move(stop)});
  if (!answer.status.ok()) return answer.status;
  return answer.flipped;
}

Status Executor::Retire(const v1::Header& header) {
  const std::scoped_lock call(parts_->core.calls);
  return Passing(parts_->runner.Run(attempt::Retire{HeaderOf(header)}), "retire.after");
}

Status Executor::Resolve(const v1::ResolveRequest& request) {
  parts_->runner.Interrupt(request.header().attempt());
  const std::scoped_lock call(parts_->core.calls);
  TANGRAM_RETURN_IF_ERROR(fault::Check("resolve.before"));
  const attempt::Resolve event{HeaderOf(request.header()), OutcomeOf(request.outcome()),
                               ListOf(request.lost()), request.reason()};
  return Passing(parts_->runner.Run(event), "resolve.after");
}

Status Executor::Release(const v1::ReleaseRequest& request) {
  parts_->runner.Interrupt(UINT64_MAX);
  const std::scoped_lock call(parts_->core.calls);
  TANGRAM_RETURN_IF_ERROR(fault::Check("release.before"));
  const attempt::Release event{HeaderOf(request.header()), ListOf(request.members()),
                               request.world_ends(), request.reason()};
  return parts_->runner.Run(event).status;
}

v1::StatusResponse Executor::GetStatus(const v1::StatusRequest* asked) {
  return StatusOf(&parts_->core, asked);
}

bool Executor::WaitChange(uint64_t* seen, std::chrono::milliseconds limit) {
  return parts_->core.WaitChange(seen, limit);
}

v1::Header Executor::Current() { return CurrentHeader(&parts_->core); }

Result<v1::QueryResponse> Executor::Query(const v1::QueryRequest& request) {
  return ViewOf(&parts_->core, request);
}

Status Executor::Word(const v1::VoteRequest& request, const std::string& pod) {
  const attempt::Word event{HeaderOf(request.header()),
                            request.target_hash(),
                            {request.ranks().begin(), request.ranks().end()},
                            pod};
  return parts_->runner.Run(event).status;
}

Result<v1::OpenPullResponse> Executor::OpenPull(const v1::OpenPullRequest& request,
                                                const std::string& pod) {
  return tangram::OpenPull(&parts_->core, request, pod);
}

Result<Attachment> Executor::Attach(uint32_t device) { return parts_->resumption.Attach(device); }

Result<ShownFds> Executor::Resume(uint32_t device, const v1::Resume& resume, KeptFds kept,
                                  std::stop_token stop) {
  return parts_->resumption.Resume(device, resume, std::move(kept), std::move(stop));
}

bool Executor::Resuming(std::string* why) { return parts_->resumption.Resuming(why); }

Status Executor::Flip(uint32_t device, const v1::EngineFlip& flip) {
  const attempt::Answer answer =
      parts_->runner.Run(attempt::EngineFlip{HeaderOf(flip.header()), device, flip.target_hash()});
  // The flip is decided by now: a fault here may only kill or delay.
  if (answer.acted) (void)fault::Hit("flip.after_commit");
  return answer.status;
}

Result<std::optional<uint64_t>> Executor::KvPull(uint32_t device, const v1::KvPull& pull,
                                                 std::stop_token stop) {
  return tangram::KvPull(&parts_->core, device, pull, std::move(stop));
}

void Executor::EngineGone(uint32_t device) {
  (void)parts_->runner.Run(attempt::EngineGone{device});
}

Executor::Totals Executor::GetTotals() {
  const std::scoped_lock lock(parts_->core.mu);
  return parts_->core.totals;
}

std::vector<uint64_t> Executor::Counters(uint32_t device, TokenCount what) {
  return CountersOf(&parts_->core, device, what);
}

std::vector<uint64_t> Executor::MissedRanks(uint32_t device) {
  return MissedOf(&parts_->core, device);
}

v1::ExpertLoadResponse Executor::GetLoad() { return LoadOf(&parts_->core); }

}  // namespace tangram
