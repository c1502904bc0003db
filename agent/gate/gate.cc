#include "agent/gate/gate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string_view>

#include "agent/base/utf8.h"

namespace tangram {
namespace {

// Moves the state word by an event of `attempt`, from any current state. False: the rules reject
// it, or the state is another attempt's; `seen` is the current state.
bool Move(std::atomic<uint64_t>& state, uint64_t attempt, GateEvent event, uint64_t* seen) {
  *seen = state.load(std::memory_order_acquire);
  while (true) {
    const std::optional<GateState> next = GateAfter(GateStateOf(*seen), event);
    if (!next || GateAttemptOf(*seen) != attempt) return false;
    if (state.compare_exchange_weak(*seen, GateWordOf(attempt, *next), std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return true;
    }
  }
}

uint64_t PackedMissed(const GateMissed& missed) {
  return missed.rank | uint64_t{missed.cause} << 16 | uint64_t{missed.doing} << 24 |
         uint64_t{missed.layer} << 32;
}

GateMissed UnpackedMissed(uint64_t word) {
  return {static_cast<uint32_t>(word & 0xffff), static_cast<uint32_t>(word >> 16 & 0xff),
          static_cast<uint32_t>(word >> 24 & 0xff), static_cast<uint32_t>(word >> 32)};
}

}  // namespace

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

Status AgentGate::Check(const GatePage* page, uint32_t moe_layers, uint32_t experts) {
  if (page->magic == GatePage::kMagic && page->moe_layers == moe_layers &&
      page->experts == experts) {
    return OkStatus();
  }
  return {Code::kInvalid, "the control page has another version or model"};
}

AgentGate AgentGate::TakeOver(GatePage* page) {
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
  const std::optional<GateState> armed = GateAfter(GateStateOf(seen), GateEvent::kArm);
  if (!armed) {
    return {Code::kWrongPhase, "gate is not idle: state " +
                                   std::to_string(static_cast<int>(GateStateOf(seen))) +
                                   " of attempt " + std::to_string(GateAttemptOf(seen))};
  }
  page_->target_epoch.store(target_epoch, std::memory_order_relaxed);
  std::memset(page_->target_hash, 0, sizeof page_->target_hash);
  std::memcpy(page_->target_hash, target_hash.data(),
              std::min(target_hash.size(), sizeof page_->target_hash));
  page_->declined.store(0, std::memory_order_relaxed);  // of the previous attempt
  page_->decline_reason[0] = '\0';
  // The target is readable before the state is Armed.
  page_->state.store(GateWordOf(attempt, *armed), std::memory_order_release);
  return OkStatus();
}

AgentGate::Withdrawal AgentGate::Withdraw(uint64_t attempt) {
  uint64_t seen = 0;
  if (Move(page_->state, attempt, GateEvent::kWithdraw, &seen)) return Withdrawal::kWithdrawn;
  if (seen == GateWordOf(attempt, GateState::kLatched)) return Withdrawal::kLatched;
  if (seen == GateWordOf(attempt, GateState::kFlipped)) return Withdrawal::kFlipped;
  return Withdrawal::kNotArmed;
}

Status AgentGate::Flip(uint64_t attempt, uint64_t epoch, bool by_agents) {
  return FlipBy(by_agents ? GateEvent::kFlipByWords : GateEvent::kFlip, attempt, epoch);
}

Status AgentGate::FlipStopped(uint64_t attempt, uint64_t epoch) {
  return FlipBy(GateEvent::kFlipStopped, attempt, epoch);
}

Status AgentGate::FlipBy(GateEvent event, uint64_t attempt, uint64_t epoch) {
  const uint64_t seen = page_->state.load(std::memory_order_acquire);
  const std::optional<GateState> next = GateAfter(GateStateOf(seen), event);
  if (!next || GateAttemptOf(seen) != attempt) {
    return {Code::kWrongPhase, "attempt " + std::to_string(attempt) +
                                   " cannot flip from gate state " +
                                   std::to_string(static_cast<int>(GateStateOf(seen))) +
                                   " of attempt " + std::to_string(GateAttemptOf(seen))};
  }
  // No other side changes this state: a latched engine waits for our answer, or is stopped, and in
  // a flip by the agents no engine votes. So these stores always precede Flipped.
  page_->steps.store(0, std::memory_order_relaxed);
  page_->epoch.store(epoch, std::memory_order_release);
  page_->state.store(GateWordOf(attempt, *next), std::memory_order_release);
  return OkStatus();
}

void AgentGate::ForgetLoad() {
  for (auto* figure : {&page_->kv_pages, &page_->kv_free_pages, &page_->kv_reserved_tokens,
                       &page_->running, &page_->waiting}) {
    figure->store(0, std::memory_order_relaxed);
  }
}

void AgentGate::SetStopped(bool stopped) {
  if (!stopped) {
    for (auto& word : page_->unreachable) word.store(0, std::memory_order_relaxed);
    for (auto& word : page_->missed) word.store(0, std::memory_order_relaxed);
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

std::vector<GateMissed> AgentGate::Missed(uint32_t ranks) const {
  std::vector<GateMissed> out;
  for (const auto& word : page_->missed) {
    const GateMissed one = UnpackedMissed(word.load(std::memory_order_relaxed));
    if (one.cause == 0 || one.cause >= GatePage::kCauses || one.doing == 0 ||
        one.doing >= GatePage::kDoings || one.rank >= ranks)
      continue;
    out.push_back(one);
  }
  return out;
}

void AgentGate::Reset(uint64_t attempt) {
  uint64_t seen = 0;
  (void)Move(page_->state, attempt, GateEvent::kReset, &seen);
}

void AgentGate::Fence() {
  uint64_t seen = 0;
  (void)Move(page_->state, attempt(), GateEvent::kFence, &seen);
}

void AgentGate::SetEpoch(uint64_t epoch) {
  page_->steps.store(0, std::memory_order_relaxed);
  page_->epoch.store(epoch, std::memory_order_release);
}

GateVote EngineGate::Word(uint64_t attempt, uint64_t target_epoch, std::string_view target_hash) {
  mine_ = {page_->epoch.load(std::memory_order_acquire), 0};
  if (attempt == 0) return mine_;
  uint64_t seen = 0;
  if (!Move(page_->state, attempt, GateEvent::kWord, &seen)) return mine_;
  const bool same =
      page_->target_epoch.load(std::memory_order_relaxed) == target_epoch &&
      target_hash.size() == sizeof page_->target_hash &&
      std::memcmp(page_->target_hash, target_hash.data(), sizeof page_->target_hash) == 0;
  if (!same) {  // the agent armed another target than this engine prepared
    Unlatch();
    return mine_;
  }
  mine_ = {target_epoch, GateHashWord(target_hash)};
  return mine_;
}

bool EngineGate::Decide(std::span<const GateVote> words, size_t members) {
  const bool go = GateGo(latched(), mine_, words, members);
  if (!go) Unlatch();
  return go;
}

void EngineGate::Decline(std::string_view reason) {
  const std::string_view said = Utf8Prefix(reason, sizeof page_->decline_reason - 1);
  std::memcpy(page_->decline_reason, said.data(), said.size());
  page_->decline_reason[said.size()] = '\0';
  page_->declined.fetch_add(1, std::memory_order_release);
  Unlatch();
}

void EngineGate::Stop(bool pulled) {
  // The vote first: a reader of `stopped` then sees whether the vote was kept.
  if (!GateKeepsWord(pulled)) Unlatch();
  page_->stopped.store(1, std::memory_order_release);
}

void EngineGate::SetUnreachable(std::span<const uint32_t> ranks) {
  std::array<uint64_t, GatePage::kReachable / 64> words{};
  for (const uint32_t rank : ranks) {
    if (rank < GatePage::kReachable) words[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    page_->unreachable[i].store(words[i], std::memory_order_relaxed);
  }
}

void EngineGate::SetMissed(std::span<const GateMissed> missed) {
  for (size_t i = 0; i < GatePage::kMissed; ++i) {
    const bool some = i < missed.size() && missed[i].rank < GatePage::kReachable;
    page_->missed[i].store(some ? PackedMissed(missed[i]) : 0, std::memory_order_relaxed);
    if (some)
      page_->missed_total[missed[i].cause][missed[i].doing].fetch_add(1, std::memory_order_relaxed);
  }
}

bool EngineGate::stopped() const { return page_->stopped.load(std::memory_order_acquire) != 0; }

bool EngineGate::latched() const {
  return GateStateOf(page_->state.load(std::memory_order_acquire)) == GateState::kLatched;
}

void EngineGate::Unlatch() {
  uint64_t seen = page_->state.load(std::memory_order_acquire);
  (void)Move(page_->state, GateAttemptOf(seen), GateEvent::kUnlatch, &seen);
}

}  // namespace tangram
