#include "agent/transition/stager.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <utility>
#include <vector>

#include "agent/base/background.h"
#include "agent/base/either_stop.h"
#include "agent/base/fault.h"
#include "agent/base/thread.h"
#include "agent/transition/end.h"
#include "agent/transition/prepare.h"

namespace tangram {
namespace {

const fault::Point kBefore("stage.before", fault::kErrors);
const fault::Point kBeforeMap("stage.before_engine_map", fault::kErrors);
const fault::Point kAfter("stage.after", fault::kErrors);

constexpr auto kAskAgain = std::chrono::milliseconds(500);

// An engine's consent to a flip of a run, requested while bytes are staged.
class Consent {
 public:
  Consent(Core* core, Job* job, uint32_t device) : stop_(job->stop.get_token(), own_.get_token()) {
    if (!job->asks_when_staged) return;
    auto call = StartThread(
        [this, core, job, device] { said_ = PrepareEngine(core, job, device, stop_.token()); });
    if (!call.ok()) said_ = call.status();
    if (call.ok()) call_ = std::move(*call);
  }
  ~Consent() { own_.request_stop(); }
  Status Await() {
    if (call_.joinable()) call_.join();
    return said_;
  }

 private:
  std::stop_source own_;
  const EitherStop stop_;
  Status said_;
  std::jthread call_;
};

}  // namespace

std::function<double()> Stager::ShareOf(const Job& job, uint32_t device) {
  StepPace* const pace = core_->PaceOf(job, device);
  if (pace == nullptr) return nullptr;
  return [this, pace, page = core_->ranks[device].gate.page()] {
    return pace->Share(core_->options.now().time_since_epoch(), *page);
  };
}

Status Stager::Start(JobPtr job) {
  auto thread = StartThread([this, job = std::move(job)] { Work(job); });
  if (!thread.ok()) return thread.status();
  const std::jthread before = std::exchange(thread_, std::move(thread).value());
  return OkStatus();
}

void Stager::Join() {
  if (thread_.joinable()) thread_.join();
}

Status Stager::StagePart(Job* job, uint32_t device) {
  Job::Part& part = job->parts.at(device);
  RankMemory& memory = *core_->ranks[device].memory;
  const v1::Header& header = job->request.header();
  Origins origins{.peers = job->peers(),
                  .before = nullptr,
                  .serving = !job->by_agents(),
                  .share = ShareOf(*job, device)};
  {
    const std::scoped_lock lock(core_->mu);
    if (const Core::Rank* rank = core_->InForce()) origins.before = rank->layout;
  }
  const std::stop_token stop = job->stop.get_token();
  {
    Consent consent(core_, job, device);
    TANGRAM_RETURN_IF_ERROR(memory.Stage(header, origins, &part.progress, stop));
    TANGRAM_RETURN_IF_ERROR(consent.Await());
  }
  if (origins.share) {
    const StepPace& pace = *core_->ranks[device].pace;
    spdlog::info(
        "staging paced attempt={} step_us_before={} step_us_after={} worker_share_percent={:.0f}",
        header.attempt(), pace.plain().count() / 1000,
        core_->ranks[device].gate.page()->step_ns.load(std::memory_order_relaxed) / 1000,
        100 * pace.share());
  }
  TANGRAM_RETURN_IF_ERROR(fault::Check("stage.before_engine_map"));
  const EngineInfo engine = core_->engines->Info(device);
  if (!engine.attached || engine.incarnation != part.incarnation) return OkStatus();
  auto fresh = memory.NewMappings();
  if (!fresh.ok()) return fresh.status();
  return core_->engines->Map(device, header, std::move(fresh).value(), stop);
}

Status Stager::StageAll(Job* job) {
  TANGRAM_RETURN_IF_ERROR(fault::Check("stage.before"));
  std::mutex error_mu;
  Status error;
  const auto done = [&](uint32_t device, const Status& status) {
    const std::scoped_lock lock(error_mu);
    if (!status.ok() && error.ok()) {
      error = {status.code(), fmt::format("device {}: {}", device, status.message())};
    }
  };
  {
    // Ranks of one pod stage concurrently: they also fetch from each other.
    std::vector<std::jthread> workers;
    for (const auto& [device, part] : job->parts) {
      auto worker = StartThread([&, device = device] {
        YieldToServing();
        done(device, StagePart(job, device));
      });
      if (!worker.ok()) {
        done(device, worker.status());
        job->stop.request_stop();  // other ranks may wait for its pieces
        break;
      }
      workers.push_back(std::move(worker).value());
    }
  }
  TANGRAM_RETURN_IF_ERROR(error);
  return fault::Check("stage.after");
}

void Stager::Work(const JobPtr& job) {
  const auto begun = ExecutorClock::now();
  Status staged = StageAll(job.get());
  {
    const std::scoped_lock lock(core_->mu);
    job->stage_seconds = std::chrono::duration<double>(ExecutorClock::now() - begun).count();
  }
  (void)runner_->Run(attempt::Staged{job->id, std::move(staged)});
  AwaitPermit(*job);
}

// The driver may have died after it sent the permit to one agent. So a staged agent queries the
// others, and takes the permit as given if one of them is permitted or has flipped.
void Stager::AwaitPermit(const Job& job) {
  const std::stop_token stop = job.stop.get_token();
  const auto over = [&] {
    const auto* attempt = core_->machine.attempt();
    return stop.stop_requested() || attempt == nullptr || attempt->plan.attempt != job.id ||
           attempt->phase != attempt::Phase::kStaged;
  };
  v1::QueryRequest query;
  *query.mutable_header() = job.request.header();
  auto wait = core_->options.permit_wait;
  while (true) {
    {
      std::unique_lock lock(core_->mu);
      if (core_->changed.wait_for(lock, wait, over)) return;
    }
    wait = kAskAgain;
    std::string permitted;  // an agent that has it
    AskAll(core_->peers, OtherAgents(core_, job), query, stop,
           [&](const std::string& agent, const v1::QueryResponse& seen) {
             const bool has = seen.phase() == v1::PHASE_PERMITTED || seen.flipped();
             if (has) permitted = agent;
             return has;
           });
    if (permitted.empty()) continue;
    const attempt::Answer taken = runner_->Run(attempt::PermitSeen{job.id});
    if (!taken.status.ok()) {
      spdlog::error("permit learned from a peer not applied attempt={} error=\"{}\"", job.id,
                    taken.status.message());
    } else if (taken.acted) {
      spdlog::warn("permit learned from a peer, no call from the driver attempt={} peer={}", job.id,
                   permitted);
    }
    return;
  }
}

}  // namespace tangram
