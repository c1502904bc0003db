#include "agent/simulation/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/simulation/agent.h"
#include "agent/simulation/engine.h"
#include "agent/simulation/truth.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

// SEEN in follow.pml.
constexpr uint32_t kArmed = 1 << 4, kLatched = 1 << 5, kStopped = 1 << 6, kDead = 1 << 7;
constexpr uint32_t kEveryone = 7;
constexpr size_t kMostFences = 15;  // MOST_FENCES there

const GatePage& PageOf(const Agent& agent) { return *agent.page(0); }

}  // namespace

bool Shown::AtRest() const {
  const Membership& record = world_->records.membership.value;
  if (record.members.empty() || record.members.size() > kRanks) return false;
  const Intent::State state = world_->records.intent.value.state;
  if (state == Intent::State::kProposed || state == Intent::State::kPermitted) return false;
  for (const std::string& id : record.members) {
    const Agent* agent = world_->AgentOfMember(id);
    const Engine* engine = world_->EngineOfMember(id);
    if (agent == nullptr || engine == nullptr || !engine->attached() || engine->hangs() ||
        engine->hash() != record.hash || PageOf(*agent).epoch.load() != record.epoch) {
      return false;
    }
  }
  for (const auto& agent : world_->agents) {
    if (!agent->alive) continue;
    if (GateStateOf(PageOf(*agent).state.load()) != GateState::kIdle ||
        PageOf(*agent).stopped.load() != 0) {
      return false;
    }
    const auto status = agent->executor->GetStatus(&v1::StatusRequest::default_instance());
    if (Unfinished(status.ranks(0))) return false;
  }
  return true;
}

bool Shown::Take(const Members& members) {
  for (const std::string& id : members) {
    if (std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.member == id; })) {
      continue;
    }
    Agent* agent = world_->AgentOfMember(id);
    if (agent == nullptr || ranks_.size() == kRanks) return false;
    ranks_.push_back({id, agent, agent->engines[0]->incarnation()});
  }
  return true;
}

uint32_t Shown::MaskOf(const Members& members) const {
  uint32_t mask = 0;
  for (size_t k = 0; k < ranks_.size(); ++k) mask |= Contains(members, ranks_[k].member) << k;
  return mask;
}

void Shown::Begin() {
  const Membership& record = world_->records.membership.value;
  ranks_.clear();
  if (!Take(record.members)) return;
  going_ = true;
  base_ = record.epoch;
  members_ = {MaskOf(record.members)};
  armed_ = {};
  attempts_ = deaths_ = fences_ = 0;
  survivors_ = kEveryone;
  fresh_ = false;
  disturbed_ = until_ >= world_->time().now();
  lines_.clear();
}

void Shown::Proposed(attempt::Kind kind, uint64_t epoch, const Members& before,
                     const Members& after) {
  if (!going_) return;
  if (kind == attempt::Kind::kRepair && fences_ > 0) return;
  const uint64_t t = epoch - base_;
  // The model has no plan after a fence, and its joins come first.
  if (kind == attempt::Kind::kRepair || fences_ > 0 || t < 1 || t >= kRanks ||
      (kind == attempt::Kind::kJoin && t != 1) || !Take(after) ||
      MaskOf(before) != members_[t - 1]) {
    return End();
  }
  const uint32_t mask = MaskOf(after);
  if (armed_[t] && members_[t] != mask) return End();
  members_[t] = mask;
  fresh_ = true;
}

void Shown::Fenced(const Members& survivors) {
  if (!going_) return;
  if (++fences_ > kMostFences) return End();
  survivors_ = MaskOf(survivors);
  for (size_t k = 0; k < ranks_.size(); ++k) ranks_[k].gone |= (survivors_ >> k & 1) == 0;
}

void Shown::Disturbed(Nanos until) {
  until_ = std::max(until_, until);
  disturbed_ = true;
}

uint32_t Shown::Of(size_t k) {
  Rank& rank = ranks_[k];
  if (!rank.agent->alive) {
    rank.gone = true;
    ++deaths_;
    return kDead;
  }
  const GatePage& page = PageOf(*rank.agent);
  const uint64_t epoch = page.epoch.load();
  const uint64_t t = epoch > base_ ? epoch - base_ : 0;
  const GateState state = GateStateOf(page.state.load());
  const bool armed = state == GateState::kArmed || state == GateState::kLatched;
  if (fences_ == 0 && armed && t + 1 < kRanks) armed_[t + 1] = true;
  if (armed && std::exchange(fresh_, false)) ++attempts_;
  if (fences_ == 0 && t > 0 && t < kRanks) {
    armed_[t] = true;
    rank.gone = (members_[t] >> k & 1) == 0;  // it left
  }
  // A joiner's latch is not shown, because it has no vote.
  const bool joins = fences_ == 0 && t < kRanks && (members_[t] >> k & 1) == 0;
  peopled_ |= !joins;
  // Another driver that does not know the plan may release it before it joins.
  if (joins && !armed && page.stopped.load() != 0) return kUnseen;
  const bool latched = state == GateState::kLatched && !joins;
  return static_cast<uint32_t>(t) | (armed ? kArmed : 0) | (latched ? kLatched : 0) |
         (page.stopped.load() != 0 ? kStopped : 0);
}

Shown::Line Shown::Now() {
  Line line{kUnseen, kUnseen, kUnseen, survivors_};
  peopled_ = false;
  for (size_t k = 0; k < ranks_.size(); ++k) {
    if (!ranks_[k].gone) line[k] = Of(k);
  }
  return line;
}

void Shown::Look() {
  if (!wanted || world_->ranks_per_pod() != 1) return;
  if (!going_ && AtRest()) Begin();
  if (!going_) return;
  for (const Rank& rank : ranks_) {
    if (rank.gone || !rank.agent->alive) continue;
    const Engine& engine = *rank.agent->engines[0];
    // Its engine died, or it was released.
    if (!engine.attached() || engine.incarnation() != rank.incarnation ||
        rank.agent->memories[0]->store().member() != rank.member) {
      return End();
    }
  }
  const Line line = Now();
  if (deaths_ > 1) return End();
  if (lines_.empty() || lines_.back() != line) lines_.push_back(line);
  if (!peopled_) End();  // no member is left: the world ended
}

void Shown::End() {
  if (!going_) return;
  going_ = false;
  if (lines_.size() < 2) return;
  size_t flips = 0;
  for (size_t t = 1; t < kRanks; ++t) {
    if (members_[t] != 0) flips = t;
    if (members_[t] == 0) members_[t] = members_[t - 1];
  }
  std::string out = fmt::format("members {}\nworld {} {} {} {} {}\n", fmt::join(members_, " "),
                                flips, attempts_, fences_, deaths_, disturbed_ ? 1 : 0);
  for (const Line& line : lines_) out += fmt::format("see {}\n", fmt::join(line, " "));
  parts.push_back(std::move(out));
}

}  // namespace tangram::simulation
