#include "agent/gate/gate.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tangram {
namespace {

const std::string kHash = std::string(32, 'h');

struct Both {
  std::vector<uint64_t> memory = std::vector<uint64_t>(GatePageBytes(2, 3) / 8);
  AgentGate agent{reinterpret_cast<GatePage*>(memory.data()), 2, 3};
  EngineGate engine{agent.page()};
};

TEST(Gate, HashWordIsLittleEndian) {
  EXPECT_EQ(GateHashWord(std::string("\x01\x02\0\0\0\0\0\x80tail", 12)), 0x8000000000000201u);
}

TEST(Gate, VotesForActiveEpochUntilTargetArmed) {
  Both g;
  g.agent.SetEpoch(4);
  EXPECT_EQ(g.engine.Word(7, 5, kHash), (GateVote{4, 0}));
  ASSERT_TRUE(g.agent.Arm(7, 5, kHash).ok());
  EXPECT_EQ(g.engine.Word(6, 5, kHash), (GateVote{4, 0})) << "another attempt is armed";
  EXPECT_EQ(g.agent.state(), GateState::kArmed);
  EXPECT_EQ(g.engine.Word(7, 5, std::string(32, 'x')), (GateVote{4, 0})) << "another target";
  EXPECT_EQ(g.agent.state(), GateState::kArmed);
  EXPECT_EQ(g.engine.Word(7, 5, kHash), (GateVote{5, GateHashWord(kHash)}));
  EXPECT_EQ(g.agent.state(), GateState::kLatched);
}

TEST(Gate, FlipsOnlyWhenAllVotesEqual) {
  Both g;
  g.agent.SetEpoch(1);
  ASSERT_TRUE(g.agent.Arm(3, 2, kHash).ok());
  GateVote mine = g.engine.Word(3, 2, kHash);
  const std::vector<std::vector<GateVote>> stay = {
      {mine, {1, 0}},      // one is not armed
      {mine},              // one is missing
      {mine, mine, mine},  // one too many: an active mask of another world
      {mine, {2, mine.hash + 1}},
  };
  for (const auto& words : stay) {
    EXPECT_FALSE(g.engine.Decide(words, 2));
    EXPECT_EQ(g.agent.state(), GateState::kArmed);
    mine = g.engine.Word(3, 2, kHash);
  }
  EXPECT_TRUE(g.engine.Decide(std::vector{mine, mine}, 2));
  EXPECT_EQ(g.agent.state(), GateState::kLatched);
}

TEST(Gate, ResetsUnretiredFlipOnFence) {
  Both g;
  g.agent.SetEpoch(1);
  ASSERT_TRUE(g.agent.Arm(3, 2, kHash).ok());
  ASSERT_TRUE(g.agent.Flip(3, 2, true).ok());
  g.agent.Fence();
  EXPECT_EQ(g.agent.state(), GateState::kIdle);
  EXPECT_EQ(g.agent.page()->epoch, 2u) << "it is a fact all the same";
  EXPECT_TRUE(g.agent.Arm(4, 3, kHash).ok());
}

TEST(Gate, DoesNotFlipWithoutLatch) {
  Both g;
  g.agent.SetEpoch(1);
  const GateVote word = g.engine.Word(3, 2, kHash);
  EXPECT_FALSE(g.engine.Decide(std::vector{word, word}, 2)) << "equal words of the same epoch";
}

TEST(Gate, RejectsWithdrawalWhileLatched) {
  Both g;
  ASSERT_TRUE(g.agent.Arm(3, 2, kHash).ok());
  g.engine.Word(3, 2, kHash);
  EXPECT_EQ(g.agent.Withdraw(3), AgentGate::Withdrawal::kLatched);
  g.engine.Decline("no room for KV");
  EXPECT_EQ(g.agent.page()->declined.load(), 1u);
  EXPECT_STREQ(g.agent.page()->decline_reason, "no room for KV");
  EXPECT_EQ(g.agent.Withdraw(2), AgentGate::Withdrawal::kNotArmed);
  EXPECT_EQ(g.agent.Withdraw(3), AgentGate::Withdrawal::kWithdrawn);
  EXPECT_EQ(g.engine.Word(3, 2, kHash), (GateVote{0, 0})) << "a withdrawn attempt never latches";
  ASSERT_TRUE(g.agent.Arm(4, 2, kHash).ok());
  EXPECT_EQ(g.agent.page()->declined.load(), 0u) << "the next attempt starts without a reason";
}

TEST(Gate, RequiresLatchForFlipAndResetsSteps) {
  Both g;
  g.agent.SetEpoch(1);
  g.agent.page()->steps = 9;
  ASSERT_TRUE(g.agent.Arm(3, 2, kHash).ok());
  EXPECT_EQ(g.agent.Flip(3, 2, false).code(), Code::kWrongPhase) << "the word was not given";
  EXPECT_EQ(g.agent.Arm(4, 2, kHash).code(), Code::kWrongPhase);
  g.engine.Word(3, 2, kHash);
  EXPECT_EQ(g.agent.Flip(2, 2, false).code(), Code::kWrongPhase) << "another attempt";
  EXPECT_EQ(g.agent.Flip(3, 2, true).code(), Code::kWrongPhase) << "the engine holds the gate";
  ASSERT_TRUE(g.agent.Flip(3, 2, false).ok());
  EXPECT_EQ(g.agent.page()->epoch.load(), 2u);
  EXPECT_EQ(g.agent.page()->steps.load(), 0u);
  EXPECT_EQ(g.agent.Withdraw(3), AgentGate::Withdrawal::kFlipped);
  g.agent.Reset(3);
  EXPECT_EQ(g.agent.state(), GateState::kIdle);
}

// One of three properties of a target is wrong.
TEST(Gate, DoesNotVoteForMismatchedTarget) {
  Both g;
  g.agent.SetEpoch(4);
  ASSERT_TRUE(g.agent.Arm(7, 5, kHash).ok());
  const std::vector<std::pair<uint64_t, std::string>> wrong = {
      {6, kHash}, {5, kHash.substr(0, 31) + 'x'}, {5, kHash.substr(1)}, {5, kHash + 'h'}};
  for (const auto& [epoch, hash] : wrong) {
    EXPECT_EQ(g.engine.Word(7, epoch, hash), (GateVote{4, 0})) << epoch << " " << hash;
    EXPECT_EQ(g.agent.state(), GateState::kArmed) << epoch << " " << hash;
    EXPECT_FALSE(g.engine.latched());
  }
  EXPECT_EQ(g.engine.Word(0, 5, kHash), (GateVote{4, 0})) << "nothing is prepared";
  EXPECT_EQ(g.agent.state(), GateState::kArmed);
  g.engine.Word(7, 5, kHash);
  EXPECT_TRUE(g.engine.latched());
}

TEST(Gate, DoesNotCompleteShortHashFromPreviousAttempt) {
  Both g;
  ASSERT_TRUE(g.agent.Arm(1, 2, kHash).ok());
  ASSERT_EQ(g.agent.Withdraw(1), AgentGate::Withdrawal::kWithdrawn);
  ASSERT_TRUE(g.agent.Arm(2, 2, kHash.substr(0, 8)).ok());
  EXPECT_EQ(g.engine.Word(2, 2, kHash), (GateVote{0, 0}));
}

TEST(Gate, PadsHashWordOfShortHashWithZeros) { EXPECT_EQ(GateHashWord("\x01\x02"), 0x201u); }

TEST(Gate, TruncatesLongDeclineReasonAndReplacesIt) {
  Both g;
  ASSERT_TRUE(g.agent.Arm(3, 2, kHash).ok());
  g.engine.Word(3, 2, kHash);
  g.engine.Decline(std::string(400, 'r'));
  EXPECT_EQ(g.agent.page()->decline_reason, std::string(255, 'r'));
  EXPECT_FALSE(g.agent.stopped()) << "what follows the reason in the page";
  g.engine.Word(3, 2, kHash);
  // One byte of room, and a character of two bytes: the cut is before it.
  g.engine.Decline(std::string(254, 'r') + "\u00e4");
  EXPECT_EQ(g.agent.page()->decline_reason, std::string(254, 'r'));
  g.engine.Decline("full");
  EXPECT_STREQ(g.agent.page()->decline_reason, "full");
  EXPECT_EQ(g.agent.page()->declined.load(), 3u);
  EXPECT_EQ(g.agent.state(), GateState::kArmed) << "who declines takes its word back";
  ASSERT_EQ(g.agent.Withdraw(3), AgentGate::Withdrawal::kWithdrawn);
  ASSERT_TRUE(g.agent.Arm(4, 2, kHash).ok());
  EXPECT_STREQ(g.agent.page()->decline_reason, "");
}

TEST(Gate, ForgetLoadClearsOnlyLoadFields) {
  Both g;
  GatePage* page = g.agent.page();
  for (auto* figure : {&page->kv_pages, &page->kv_free_pages, &page->kv_reserved_tokens,
                       &page->running, &page->waiting, &page->steps, &page->epoch}) {
    figure->store(9);
  }
  g.agent.ForgetLoad();
  for (const auto* figure : {&page->kv_pages, &page->kv_free_pages, &page->kv_reserved_tokens,
                             &page->running, &page->waiting}) {
    EXPECT_EQ(figure->load(), 0u);
  }
  EXPECT_EQ(page->steps.load(), 9u);
  EXPECT_EQ(page->epoch.load(), 9u);
  g.agent.SetEpoch(3);
  EXPECT_EQ(page->steps.load(), 0u) << "of the epoch before";
}

TEST(Gate, ReportsUnreachableRanksWithinLayoutAndPage) {
  Both g;
  g.agent.page()->turns = ~uint64_t{0};  // the next field of the page
  g.engine.SetUnreachable(std::vector<uint32_t>{0, 63, 64, 8191, 8192, 9000});
  EXPECT_EQ(g.agent.page()->turns, ~uint64_t{0});
  EXPECT_EQ(g.agent.Unreachable(9000), (std::vector<uint32_t>{0, 63, 64, 8191}));
  EXPECT_EQ(g.agent.Unreachable(64), (std::vector<uint32_t>{0, 63}));
  EXPECT_EQ(g.agent.Unreachable(63), (std::vector<uint32_t>{0}));
  g.agent.SetStopped(true);
  EXPECT_TRUE(g.engine.stopped());
  EXPECT_EQ(g.agent.Unreachable(9000).size(), 4u) << "who stops a rank keeps what its engine saw";
  g.engine.SetUnreachable(std::vector<uint32_t>{5});
  EXPECT_EQ(g.agent.Unreachable(5000), (std::vector<uint32_t>{5}))
      << "a new list, not a longer one";
  g.agent.SetStopped(false);
  EXPECT_FALSE(g.engine.stopped());
  EXPECT_TRUE(g.agent.Unreachable(5000).empty());
}

TEST(Gate, ReportsOnlyValidMissedRanks) {
  Both g;
  GatePage* page = g.agent.page();
  const std::vector<GateMissed> told{{1, 2, 3, 57}, {8191, 6, 5, 0}, {2, 1, 1, 0}};
  g.engine.SetMissed(told);
  EXPECT_EQ(g.agent.Missed(8192), told);
  EXPECT_EQ(g.agent.Missed(2), (std::vector<GateMissed>{told[0]})) << "of no rank of the layout";
  g.engine.SetMissed(std::vector<GateMissed>{told[0]});
  EXPECT_EQ(g.agent.Missed(8192), (std::vector<GateMissed>{told[0]})) << "a new list";
  EXPECT_EQ(page->missed_total[2][3].load(), 2u) << "counts go on";
  g.engine.SetMissed(std::vector<GateMissed>(100, told[2]));
  EXPECT_EQ(g.agent.Missed(8192).size(), GatePage::kMissed) << "no more than there is room for";
  EXPECT_EQ(page->turns.load(), 0u) << "what follows in the page";
  page->missed[0] = ~uint64_t{0};  // an engine may write anything
  page->missed[1] = 1 | 1ull << 24;
  page->missed[2] = 1 | 1ull << 16;
  EXPECT_EQ(g.agent.Missed(8192).size(), GatePage::kMissed - 3);
  g.agent.SetStopped(true);
  EXPECT_FALSE(g.agent.Missed(8192).empty());
  g.agent.SetStopped(false);
  EXPECT_TRUE(g.agent.Missed(8192).empty());
}

TEST(Gate, AcceptsOnlyPageOfSameVersionAndModel) {
  Both g;
  GatePage* page = g.agent.page();
  EXPECT_TRUE(AgentGate::Check(page, 2, 3).ok());
  EXPECT_EQ(AgentGate::Check(page, 1, 3).code(), Code::kInvalid);
  EXPECT_EQ(AgentGate::Check(page, 2, 4).code(), Code::kInvalid);
  page->magic = GatePage::kMagic + 1;
  EXPECT_EQ(AgentGate::Check(page, 2, 3).code(), Code::kInvalid);
}

// The race that matters: the agent withdraws while the engine votes. Either may win, but both must
// agree: no vote is given for a withdrawn attempt.
TEST(Gate, AgreesOnOutcomeWhenWithdrawalRacesVote) {
  Both g;
  int withdrawn = 0;
  int flipped = 0;
  for (uint64_t attempt = 1; attempt <= 3000; ++attempt) {
    ASSERT_TRUE(g.agent.Arm(attempt, attempt + 1, kHash).ok());
    bool go = false;
    std::thread engine([&] {
      const GateVote mine = g.engine.Word(attempt, attempt + 1, kHash);
      go = g.engine.Decide(std::vector{mine, mine}, 2);
    });
    if (attempt % 2 == 0) std::this_thread::yield();
    const auto result = g.agent.Withdraw(attempt);
    engine.join();
    if (result == AgentGate::Withdrawal::kWithdrawn) {
      EXPECT_FALSE(go) << "attempt " << attempt << " was withdrawn and went";
      ++withdrawn;
    } else {
      ASSERT_EQ(result, AgentGate::Withdrawal::kLatched);
      ASSERT_TRUE(go);
      ASSERT_TRUE(g.agent.Flip(attempt, attempt + 1, false).ok());
      g.agent.Reset(attempt);
      ++flipped;
    }
  }
  EXPECT_EQ(withdrawn + flipped, 3000);
}

TEST(GateTest, WithdrawsOrKeepsVoteWhenStopped) {
  for (const bool keep : {false, true}) {
    std::vector<std::byte> memory(GatePageBytes(1, 1));
    AgentGate agent(reinterpret_cast<GatePage*>(memory.data()), 1, 1);
    EngineGate engine(agent.page());
    const std::string hash(32, 'h');
    ASSERT_TRUE(agent.Arm(5, 2, hash).ok());
    EXPECT_EQ(engine.Word(5, 2, hash).epoch, 2u);
    engine.Stop(keep);
    engine.SetUnreachable(std::vector<uint32_t>{1, 70});
    EXPECT_TRUE(agent.stopped());
    EXPECT_EQ(agent.Unreachable(71), (std::vector<uint32_t>{1, 70}));
    EXPECT_EQ(agent.Withdraw(5),
              keep ? AgentGate::Withdrawal::kLatched : AgentGate::Withdrawal::kWithdrawn);
    if (!keep) continue;
    // The fence's outcome is forward: no other event moves the state now.
    EXPECT_TRUE(agent.FlipStopped(5, 2).ok());
    EXPECT_EQ(agent.page()->epoch.load(), 2u);
    agent.SetStopped(false);
    EXPECT_TRUE(agent.Unreachable(71).empty());
  }
}

TEST(GateTest, TakesOverPageAndAbortsAttemptInProgress) {
  std::vector<std::byte> memory(GatePageBytes(2, 3));
  auto* page = reinterpret_cast<GatePage*>(memory.data());
  AgentGate before(page, 2, 3);
  before.SetEpoch(7);
  ASSERT_TRUE(before.Arm(9, 8, std::string(32, 'h')).ok());
  EXPECT_FALSE(AgentGate::Check(page, 2, 4).ok()) << "another model";
  EXPECT_TRUE(AgentGate::Check(page, 2, 3).ok());
  const AgentGate after = AgentGate::TakeOver(page);
  EXPECT_EQ(after.state(), GateState::kIdle);
  EXPECT_EQ(after.attempt(), 9u) << "its number is over, too";
  EXPECT_EQ(after.page()->epoch.load(), 7u);
}

}  // namespace
}  // namespace tangram
