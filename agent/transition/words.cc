#include "agent/transition/words.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/thread.h"
#include "agent/transition/end.h"

namespace tangram {
namespace {
constexpr auto kRetry = std::chrono::milliseconds(50);
}

Status Words::Start(JobPtr job) {
  auto thread = StartThread([this, job = std::move(job)] { Work(*job); });
  if (!thread.ok()) return thread.status();
  const std::scoped_lock lock(mu_);
  std::swap(thread.value(), thread_);
  return OkStatus();
}

void Words::Join() {
  std::jthread thread;
  const std::scoped_lock lock(mu_);
  std::swap(thread, thread_);
}

// Calls all agents concurrently until each has the votes, even after our own flip: a peer that
// misses our votes could not follow.
void Words::Work(const Job& job) {
  const std::stop_token stop = job.stop.get_token();
  v1::VoteRequest words;
  *words.mutable_header() = job.request.header();
  words.set_target_hash(job.target_hash);
  for (const auto& [device, part] : job.parts) {
    words.add_ranks(static_cast<uint32_t>(part.target_rank));
  }
  (void)runner_->Run(attempt::WordsOut{job.id});  // a world of one agent

  std::map<std::string, bool> open;  // agents without the votes: whether a call is open
  for (const std::string& agent : OtherAgents(core_, job)) open.emplace(agent, false);
  const auto under_way = [&] {
    return std::any_of(open.begin(), open.end(), [](const auto& entry) { return entry.second; });
  };
  std::unique_lock lock(core_->mu);
  while (!open.empty() && !stop.stop_requested()) {
    std::vector<std::string> now;
    for (auto& [agent, called] : open) {
      if (!std::exchange(called, true)) now.push_back(agent);
    }
    const uint64_t seen = core_->version;
    lock.unlock();
    for (const std::string& agent : now) {
      core_->peers->Word(agent, words, stop, [&, agent](const Status& status) {
        if (!status.ok()) {
          spdlog::debug("votes not sent peer={} error=\"{}\"", agent, status.message());
        }
        const std::scoped_lock answered(core_->mu);
        if (status.ok()) {
          open.erase(agent);
        } else {
          open[agent] = false;
        }
        core_->changed.notify_all();
      });
    }
    lock.lock();
    core_->changed.wait_for(lock, kRetry, [&] {
      return stop.stop_requested() || open.empty() || core_->version != seen;
    });
  }
  core_->changed.wait(lock, [&] { return !under_way(); });
}

}  // namespace tangram
