// The first layout, and a repair: no engine steps, so the agents exchange the words themselves.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "agent/transition/executor.h"

namespace tangram {
namespace {
constexpr auto kRetry = std::chrono::milliseconds(50);
}

// Tells every other agent the words of my ranks, all at once, until each has them. Goes on after
// my own flip: a peer that misses my words could not follow.
void Executor::RunWords(AttemptPtr attempt, std::stop_token stop) {
  v1::WordRequest words;
  *words.mutable_header() = HeaderOf(*attempt);
  words.set_target_hash(attempt->target_hash);
  for (const auto& [device, part] : attempt->parts) {
    words.add_ranks(static_cast<uint32_t>(part.target_rank));
  }
  std::map<std::string, bool> open;  // who has not got them: whether a call is under way
  for (const std::string& agent : OtherAgents(*attempt)) open.emplace(agent, false);
  const auto under_way = [&] {
    return std::any_of(open.begin(), open.end(), [](const auto& entry) { return entry.second; });
  };

  std::unique_lock lock(mu_);
  FlipByWordsLocked(attempt.get());  // a world of one agent
  while (!open.empty() && !stop.stop_requested()) {
    std::vector<std::string> now;
    for (auto& [agent, called] : open) {
      if (!std::exchange(called, true)) now.push_back(agent);
    }
    const uint64_t seen = version_;
    lock.unlock();
    for (const std::string& agent : now) {
      peers_->Word(agent, words, stop, [&, agent](const Status& status) {
        if (!status.ok()) spdlog::debug("words to {}: {}", agent, status.message());
        const std::scoped_lock answered(mu_);
        if (status.ok()) {
          open.erase(agent);
        } else {
          open[agent] = false;
        }
        changed_.notify_all();
      });
    }
    lock.lock();
    changed_.wait_for(lock, kRetry,
                      [&] { return stop.stop_requested() || open.empty() || version_ != seen; });
  }
  changed_.wait(lock, [&] { return !under_way(); });
}

Status Executor::Word(const v1::WordRequest& request, const std::string& pod) {
  const std::scoped_lock lock(mu_);
  if (last_ && last_->id == request.header().attempt() &&
      request.header().world() == options_.world && flipped_.contains(last_->id)) {
    return OkStatus();  // late, and of no more use
  }
  TANGRAM_RETURN_IF_ERROR(CheckCurrent(request.header(), "Word"));
  Attempt& attempt = *attempt_;
  if (!attempt.by_agents()) {
    return {Code::kWrongPhase, "engines carry the words of this attempt"};
  }
  if (request.target_hash() != attempt.target_hash) {
    return {Code::kBadPlan, fmt::format("the words of pod '{}' are for another layout than attempt "
                                        "{}'s",
                                        pod, attempt.id)};
  }
  for (const uint32_t rank : request.ranks()) {
    if (rank >= static_cast<uint32_t>(attempt.target->members_size())) {
      return {Code::kBadPlan, fmt::format("word of rank {}, the target has {} members", rank,
                                          attempt.target->members_size())};
    }
    const v1::Member& member = attempt.target->members(static_cast<int>(rank));
    if (member.pod() != pod) {
      return {Code::kUnauthenticated, fmt::format("rank {} is of pod '{}', the word came from '{}'",
                                                  rank, member.pod(), pod)};
    }
  }
  attempt.words.insert(request.ranks().begin(), request.ranks().end());
  FlipByWordsLocked(&attempt);
  return OkStatus();
}

void Executor::FlipByWordsLocked(Attempt* attempt) {
  if (attempt->phase != v1::PHASE_PERMITTED || attempt->held) return;
  if (attempt->words.size() != static_cast<size_t>(attempt->target->members_size())) return;
  for (auto& [device, part] : attempt->parts) {
    if (part.flipped) continue;
    if (const Status status = FlipLocked(attempt, device, true); !status.ok()) {
      attempt->error = status.message();
      spdlog::error("flip of device {} by words: {}", device, status.message());
      return;
    }
  }
  for (Rank& rank : ranks_) {
    if (rank.rank < 0 || layout::RankOf(*attempt->target, rank.member.id()) >= 0) continue;
    rank.rank = -1;  // the fence removed it
    rank.removed = true;
  }
}

}  // namespace tangram
