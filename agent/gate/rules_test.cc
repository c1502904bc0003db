// All of the protocol's decisions (docs/architecture.md, section 4.1).
#include "agent/gate/rules.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "agent/gate/gate.h"

namespace tangram {
namespace {

TEST(GateRules, EveryEventInEveryState) {
  using enum GateState;
  using enum GateEvent;
  // All other transitions are rejected.
  std::map<std::pair<GateState, GateEvent>, GateState> allowed = {
      {{kIdle, kArm}, kArmed},
      {{kArmed, kWithdraw}, kIdle},  // the agent never withdraws a given vote
      {{kArmed, kWord}, kLatched},
      {{kLatched, kWord}, kLatched},  // repeated in the next step
      {{kLatched, kUnlatch}, kArmed},
      {{kLatched, kFlip}, kFlipped},
      {{kArmed, kFlipByWords}, kFlipped},
      {{kArmed, kFlipStopped}, kFlipped},
      {{kLatched, kFlipStopped}, kFlipped},
      {{kFlipped, kReset}, kIdle},
  };
  for (const GateState state : {kIdle, kArmed, kLatched, kFlipped})
    allowed[{state, kFence}] = kIdle;
  for (const GateState state : {kIdle, kArmed, kLatched, kFlipped}) {
    for (size_t e = 0; e < kGateEvents; ++e) {
      const auto event = static_cast<GateEvent>(e);
      const auto rule = allowed.find({state, event});
      const auto want = rule == allowed.end() ? std::nullopt : std::optional(rule->second);
      EXPECT_EQ(GateAfter(state, event), want)
          << "state " << static_cast<int>(state) << ", event " << e;
    }
  }
}

// Every list of at most three votes, of three different ones, for every size of the world.
TEST(GateRules, RequiresLatchAndEqualVotesOfAllMembers) {
  const GateVote mine{5, 77};
  const std::vector<GateVote> kinds = {mine, {4, 0}, {5, 78}};
  size_t goes = 0;
  for (size_t n = 0; n <= 3; ++n) {
    for (size_t code = 0; code < 27; ++code) {
      std::vector<GateVote> words;
      size_t equal = 0;
      for (size_t i = 0, rest = code; i < n; ++i, rest /= 3) {
        words.push_back(kinds[rest % 3]);
        equal += rest % 3 == 0;
      }
      for (size_t members = 0; members <= 4; ++members) {
        const bool want = n > 0 && n == members && equal == members;
        EXPECT_EQ(GateGo(true, mine, words, members), want) << n << " words of " << members;
        EXPECT_FALSE(GateGo(false, mine, words, members)) << "without a latch";
        goes += want;
      }
    }
  }
  EXPECT_GT(goes, 0u);
}

TEST(GateRules, KeepsVoteWhenKvConfirmed) {
  EXPECT_TRUE(GateKeepsWord(true));
  EXPECT_FALSE(GateKeepsWord(false));
}

TEST(GatePage, PacksAttemptAndState) {
  const uint64_t attempt = (uint64_t{1} << 60) + 5;
  for (const auto state :
       {GateState::kIdle, GateState::kArmed, GateState::kLatched, GateState::kFlipped}) {
    EXPECT_EQ(GateStateOf(GateWordOf(attempt, state)), state);
    EXPECT_EQ(GateAttemptOf(GateWordOf(attempt, state)), attempt);
  }
}

TEST(GatePage, PlacesExpertCountersAfterHeader) {
  constexpr uint32_t kLayers = 2, kExperts = 3;
  std::vector<uint64_t> memory(GatePageBytes(kLayers, kExperts) / 8);
  auto* page = reinterpret_cast<GatePage*>(memory.data());
  const auto* routed = GateCounters(page, TokenCount::kRouted, kLayers, kExperts);
  const auto* executed = GateCounters(page, TokenCount::kExecuted, kLayers, kExperts);
  EXPECT_EQ(static_cast<const void*>(routed), page + 1);
  EXPECT_EQ(executed, routed + kLayers * kExperts);
  EXPECT_EQ(static_cast<const void*>(executed + kLayers * kExperts), memory.data() + memory.size());
}

}  // namespace
}  // namespace tangram
