#include "agent/gate/gate.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tangram {

uint64_t GateHashWord(std::string_view hash) {
  uint64_t word = 0;
  for (size_t i = 0; i < std::min<size_t>(8, hash.size()); ++i) {
    word |= uint64_t{static_cast<uint8_t>(hash[i])} << (8 * i);
  }
  return word;
}

AgentGate::AgentGate(GatePage* page, uint32_t moe_layers, uint32_t experts) : page_(page) {
  new (page_) GatePage{};
  page_->moe_layers = moe_layers;
  page_->experts = experts;
  page_->magic = GatePage::kMagic;
}

Result<AgentGate> AgentGate::TakeOver(GatePage* page, uint32_t moe_layers, uint32_t experts) {
  if (page->magic != GatePage::kMagic || page->moe_layers != moe_layers ||
      page->experts != experts) {
    return Status{Code::kInvalid, "the control page is not of this version or model"};
  }
  AgentGate gate;
  gate.page_ = page;
  gate.Fence();
  return gate;
}

GateState AgentGate::state() const {
  return GateStateOf(page_->state.load(std::memory_order_acquire));
}

uint64_t AgentGate::attempt() const {
  return GateAttemptOf(page_->state.load(std::memory_order_acquire));
}

Status AgentGate::Arm(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash) {
  const uint64_t seen = page_->state.load(std::memory_order_acquire);
  if (GateStateOf(seen) != GateState::kIdle) {
    return {Code::kWrongPhase, "gate is not idle: state " +
                                   std::to_string(static_cast<int>(GateStateOf(seen))) +
                                   " of attempt " + std::to_string(GateAttemptOf(seen))};
  }
  page_->target_epoch.store(target_epoch, std::memory_order_relaxed);
  std::memset(page_->target_hash, 0, sizeof page_->target_hash);
  std::memcpy(page_->target_hash, target_hash.data(),
              std::min(target_hash.size(), sizeof page_->target_hash));
  page_->declined.store(0, std::memory_order_relaxed);  // of the attempt before
  page_->decline_reason[0] = '\0';
  // The target is readable before the state says so.
  page_->state.store(GateWordOf(attempt, GateState::kArmed), std::memory_order_release);
  return OkStatus();
}

AgentGate::Withdrawal AgentGate::Withdraw(uint64_t attempt) {
  uint64_t armed = GateWordOf(attempt, GateState::kArmed);
  if (page_->state.compare_exchange_strong(armed, GateWordOf(attempt, GateState::kIdle),
                                           std::memory_order_acq_rel)) {
    return Withdrawal::kWithdrawn;
  }
  if (armed == GateWordOf(attempt, GateState::kLatched)) return Withdrawal::kLatched;
  if (armed == GateWordOf(attempt, GateState::kFlipped)) return Withdrawal::kFlipped;
  return Withdrawal::kNotArmed;
}

Status AgentGate::Flip(uint64_t attempt, uint64_t epoch, bool by_agents) {
  const GateState from = by_agents ? GateState::kArmed : GateState::kLatched;
  const uint64_t seen = page_->state.load(std::memory_order_acquire);
  if (seen != GateWordOf(attempt, from)) {
    return {Code::kWrongPhase, "flip of attempt " + std::to_string(attempt) + " wants gate state " +
                                   std::to_string(static_cast<int>(from)) + ", it is " +
                                   std::to_string(static_cast<int>(GateStateOf(seen))) +
                                   " of attempt " + std::to_string(GateAttemptOf(seen))};
  }
  // Nobody leaves `from` beside us: a latched engine waits for our answer, and in the first
  // flip no engine gives words. So these stores precede Flipped without a window.
  page_->steps.store(0, std::memory_order_relaxed);
  page_->epoch.store(epoch, std::memory_order_release);
  page_->state.store(GateWordOf(attempt, GateState::kFlipped), std::memory_order_release);
  return OkStatus();
}

Status AgentGate::FlipStopped(uint64_t attempt, uint64_t epoch) {
  if (state() == GateState::kLatched) {
    // Nobody but us: the engine gave this step up, or is gone.
    uint64_t latched = GateWordOf(attempt, GateState::kLatched);
    page_->state.compare_exchange_strong(latched, GateWordOf(attempt, GateState::kArmed),
                                         std::memory_order_acq_rel);
  }
  return Flip(attempt, epoch, true);
}

void AgentGate::SetStopped(bool stopped) {
  if (!stopped) {
    for (auto& word : page_->unreachable) word.store(0, std::memory_order_relaxed);
  }
  page_->stopped.store(stopped ? 1 : 0, std::memory_order_release);
}

bool AgentGate::stopped() const { return page_->stopped.load(std::memory_order_acquire) != 0; }

std::vector<uint32_t> AgentGate::Unreachable(uint32_t ranks) const {
  std::vector<uint32_t> out;
  for (uint32_t r = 0; r < std::min(ranks, GatePage::kReachable); ++r) {
    if (page_->unreachable[r / 64].load(std::memory_order_relaxed) >> (r % 64) & 1)
      out.push_back(r);
  }
  return out;
}

void AgentGate::Reset(uint64_t attempt) {
  uint64_t flipped = GateWordOf(attempt, GateState::kFlipped);
  page_->state.compare_exchange_strong(flipped, GateWordOf(attempt, GateState::kIdle),
                                       std::memory_order_acq_rel);
}

void AgentGate::Fence() {
  const uint64_t seen = page_->state.load(std::memory_order_acquire);
  page_->state.store(GateWordOf(GateAttemptOf(seen), GateState::kIdle), std::memory_order_release);
}

void AgentGate::SetEpoch(uint64_t epoch) {
  page_->steps.store(0, std::memory_order_relaxed);
  page_->epoch.store(epoch, std::memory_order_release);
}

GateWord EngineGate::Word(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash) {
  mine_ = {page_->epoch.load(std::memory_order_acquire), 0};
  if (attempt == 0) return mine_;
  uint64_t seen = GateWordOf(attempt, GateState::kArmed);
  const bool latched_now = page_->state.compare_exchange_strong(
      seen, GateWordOf(attempt, GateState::kLatched), std::memory_order_acq_rel);
  if (!latched_now && seen != GateWordOf(attempt, GateState::kLatched)) return mine_;
  const bool same =
      page_->target_epoch.load(std::memory_order_relaxed) == target_epoch &&
      target_hash.size() == sizeof page_->target_hash &&
      std::memcmp(page_->target_hash, target_hash.data(), sizeof page_->target_hash) == 0;
  if (!same) {  // the agent armed something else than it had this engine prepare
    Unlatch();
    return mine_;
  }
  mine_ = {target_epoch, GateHashWord(target_hash)};
  return mine_;
}

bool EngineGate::Decide(std::span<const GateWord> words, size_t members) {
  const bool go =
      latched() && members > 0 && words.size() == members &&
      std::all_of(words.begin(), words.end(), [&](const GateWord& word) { return word == mine_; });
  if (!go) Unlatch();
  return go;
}

void EngineGate::Decline(std::string_view reason) {
  const size_t n = std::min(reason.size(), sizeof page_->decline_reason - 1);
  std::memcpy(page_->decline_reason, reason.data(), n);
  page_->decline_reason[n] = '\0';
  page_->declined.fetch_add(1, std::memory_order_release);
  Unlatch();
}

void EngineGate::Stop(bool keep_word) {
  // The word goes first: who sees `stopped` sees whether it was kept.
  if (!keep_word) Unlatch();
  page_->stopped.store(1, std::memory_order_release);
}

void EngineGate::SetUnreachable(std::span<const uint32_t> ranks) {
  uint64_t words[GatePage::kReachable / 64] = {};
  for (const uint32_t rank : ranks) {
    if (rank < GatePage::kReachable) words[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  for (size_t i = 0; i < std::size(words); ++i) {
    page_->unreachable[i].store(words[i], std::memory_order_relaxed);
  }
}

bool EngineGate::stopped() const { return page_->stopped.load(std::memory_order_acquire) != 0; }

bool EngineGate::latched() const {
  return GateStateOf(page_->state.load(std::memory_order_acquire)) == GateState::kLatched;
}

void EngineGate::Unlatch() {
  uint64_t seen = page_->state.load(std::memory_order_acquire);
  if (GateStateOf(seen) != GateState::kLatched) return;
  page_->state.compare_exchange_strong(seen, GateWordOf(GateAttemptOf(seen), GateState::kArmed),
                                       std::memory_order_acq_rel);
}

}  // namespace tangram
