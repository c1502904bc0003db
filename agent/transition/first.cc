// The first layout, and a repair: no engine steps, so the agents exchange the words themselves.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "agent/transition/executor.h"

namespace tangram {
namespace {
constexpr auto kRetry = std::chrono::milliseconds(50);
}

// Tells every other agent the words of my ranks until each has them. Goes on after my own
// flip: a peer that misses my word could not follow.
void Executor::RunWords(AttemptPtr attempt, std::stop_token stop) {
  {
    const std::scoped_lock lock(mu_);
    FlipByWordsLocked(attempt.get());  // a world of one agent
  }
  std::set<std::pair<std::string, uint32_t>> open;  // agent, my rank
  for (const v1::PeerAddress& peer : attempt->request.peers()) {
    if (peer.agent() == address_.agent()) continue;
    for (const auto& [device, part] : attempt->parts) {
      open.emplace(peer.agent(), static_cast<uint32_t>(part.target_rank));
    }
  }
  while (!open.empty() && !stop.stop_requested()) {
    for (auto it = open.begin(); it != open.end() && !stop.stop_requested();) {
      v1::WordRequest word;
      *word.mutable_header() = HeaderOf(*attempt);
      word.set_rank(it->second);
      word.set_target_hash(attempt->target_hash);
      const Status status = peers_->Word(it->first, word, stop);
      if (!status.ok()) {
        spdlog::debug("word of rank {} to {}: {}", it->second, it->first, status.message());
      }
      it = status.ok() ? open.erase(it) : std::next(it);
    }
    if (open.empty()) return;
    std::unique_lock lock(mu_);
    const uint64_t seen = version_;
    changed_.wait_for(lock, kRetry, [&] { return stop.stop_requested() || version_ != seen; });
  }
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
  if (request.rank() >= static_cast<uint32_t>(attempt.target->members_size())) {
    return {Code::kBadPlan, fmt::format("word of rank {}, the target has {} members",
                                        request.rank(), attempt.target->members_size())};
  }
  const v1::Member& member = attempt.target->members(static_cast<int>(request.rank()));
  if (member.pod() != pod) {
    return {Code::kUnauthenticated, fmt::format("rank {} is of pod '{}', the word came from '{}'",
                                                request.rank(), member.pod(), pod)};
  }
  attempt.words[request.rank()] = request.target_hash();
  FlipByWordsLocked(&attempt);
  return OkStatus();
}

void Executor::FlipByWordsLocked(Attempt* attempt) {
  if (attempt->phase != v1::PHASE_PERMITTED || attempt->held) return;
  for (int rank = 0; rank < attempt->target->members_size(); ++rank) {
    const auto word = attempt->words.find(static_cast<uint32_t>(rank));
    if (word == attempt->words.end() || word->second != attempt->target_hash) return;
  }
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
