// Runs: consecutive flips under one permit.
#include <gtest/gtest.h>

#include <string>

#include "agent/attempt/machine.h"
#include "agent/attempt/testing/attempts.h"

namespace tangram::attempt::testing {
namespace {

class Runs : public Attempts {
 protected:
  // Takes the next attempt of the run up to phase Staged.
  void StageNext(uint64_t attempt) {
    Prepare ask = Ask(Kind::kLayout, To(attempt));
    ask.by_run = true;
    ASSERT_EQ(Tell(ask), "build");
    ASSERT_EQ(Tell(Built{PlanFor(Kind::kLayout, attempt)}), "reserve");
    ASSERT_EQ(Tell(Reserved{attempt, OkStatus()}), "acted");
    ASSERT_EQ(Tell(Stage{To(attempt)}), "start staging");
    (void)Tell(Begun{attempt});
    (void)Tell(Staged{attempt, OkStatus()});
    ASSERT_EQ(PhaseNow(), Phase::kStaged);
  }
  std::string PermitNext(uint64_t attempt) { return Tell(Permit{To(attempt), true}); }
  std::string RetireNext(uint64_t attempt) { return Tell(Retire{To(attempt), true}); }
  Phase PhaseNow() const { return hands_->machine.attempt()->phase; }
  void Flip(uint64_t attempt) {
    const Header header = To(attempt);
    for (uint32_t device = 0; device < kRanks; ++device) FlipByEngine(header, device);
    ASSERT_EQ(PhaseNow(), Phase::kFlipped);
  }
  void Steps(uint64_t steps) {
    for (auto& gate : hands_->gates) gate.steps = steps;
  }
  void RetireBy(uint64_t attempt) {
    Steps(1);
    ASSERT_EQ(RetireNext(attempt), "return old");
    ASSERT_EQ(Tell(Returned{attempt, OkStatus()}), "acted");
  }
  // Attempts 2 to 4 are a run; 2 has flipped.
  void BeginRun() {
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_EQ(Tell(Ask(Kind::kLayout, To(2))), "build");
    Plan plan = PlanFor(Kind::kLayout, 2);
    plan.run_last = 4;
    ASSERT_EQ(Tell(Built{plan}), "reserve");
    ASSERT_EQ(Tell(Reserved{2, OkStatus()}), "acted");
    ASSERT_EQ(Tell(Stage{To(2)}), "start staging");
    (void)Tell(Begun{2});
    (void)Tell(Staged{2, OkStatus()});
    EXPECT_EQ(PermitNext(2), "WrongPhase") << "the first has the driver's permit, or none";
    ASSERT_EQ(Tell(Permit{To(2)}), "acted");
    ASSERT_NO_FATAL_FAILURE(Flip(2));
  }
};

TEST_F(Runs, UsesOnePermitForAllFlips) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  for (uint64_t attempt = 2; attempt < 4; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(RetireBy(attempt));
    ASSERT_NO_FATAL_FAILURE(StageNext(attempt + 1));
    ASSERT_EQ(PermitNext(attempt + 1), "acted");
    ASSERT_NO_FATAL_FAILURE(Flip(attempt + 1));
  }
  EXPECT_EQ(RetireNext(5), "WrongPhase");
  Steps(1);
  EXPECT_EQ(Tell(Retire{To(4)}), "return old") << "the last is retired by the driver";
  EXPECT_EQ(hands_->machine.highest(), 4u);
}

// Its first step proves to each rank that all members flipped.
TEST_F(Runs, RetainsOldPiecesUntilFirstStep) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  Steps(0);
  EXPECT_EQ(RetireNext(2), "WrongPhase");
  hands_->gates[0].steps = 1;
  EXPECT_EQ(RetireNext(2), "WrongPhase") << "each rank knows of its own";
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
}

TEST_F(Runs, RejectsPermitBeforeVerification) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  Prepare ask = Ask(Kind::kLayout, To(3));
  ask.by_run = true;
  ASSERT_EQ(Tell(ask), "build");
  ASSERT_EQ(Tell(Built{PlanFor(Kind::kLayout, 3)}), "reserve");
  ASSERT_EQ(Tell(Reserved{3, OkStatus()}), "acted");
  EXPECT_EQ(PermitNext(3), "WrongPhase");
  ASSERT_EQ(Tell(Stage{To(3)}), "start staging");
  (void)Tell(Begun{3});
  EXPECT_EQ(PermitNext(3), "WrongPhase");
  (void)Tell(Staged{3, {Code::kUnavailable, "no source"}});
  EXPECT_EQ(PermitNext(3), "WrongPhase");
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
}

// Between two flips no attempt is in progress, and the remaining flips never begin.
TEST_F(Runs, CancelsRemainingFlipsWhenAbortedBetweenFlips) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  EXPECT_EQ(Tell(Abort{To(4), "enough"}), "ok");
  Prepare ask = Ask(Kind::kLayout, To(3));
  ask.by_run = true;
  EXPECT_EQ(Tell(ask), "StaleAttempt");
  ask.by_run = false;
  EXPECT_EQ(Tell(ask), "StaleAttempt") << "its number is burned, whoever asks";
  EXPECT_EQ(hands_->machine.highest(), 4u);
}

TEST_F(Runs, WithdrawsFlipInProgressOnAbort) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  ASSERT_NO_FATAL_FAILURE(StageNext(3));
  ASSERT_EQ(PermitNext(3), "acted");
  EXPECT_EQ(Tell(Abort{To(4), "enough"}), "drop");
  EXPECT_EQ(Tell(Dropped{3}), "acted");
  EXPECT_EQ(hands_->machine.attempt(), nullptr);
  EXPECT_EQ(hands_->machine.epoch(), 2u) << "what is flipped stays";
}

// The vote is latched: the gate decides, and the driver retries until the outcome is known.
TEST_F(Runs, WaitsForOutcomeWhenAbortedAfterVote) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  ASSERT_NO_FATAL_FAILURE(StageNext(3));
  ASSERT_EQ(PermitNext(3), "acted");
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  EXPECT_EQ(Tell(Abort{To(4), "enough"}), "ask peers");
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  ASSERT_EQ(Tell(EngineFlip{To(3), 0, "target"}), "commit 0");
  ASSERT_EQ(Tell(Did(3, {0}, By::kEngine)), "acted");
  EXPECT_EQ(Tell(Abort{To(4), "enough"}), "flipped");
  EXPECT_EQ(RetireNext(3), "StaleAttempt") << "and it goes no further";
}

TEST_F(Runs, AllowsOnlyDriverToRetireAfterAbort) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  EXPECT_EQ(Tell(Abort{To(4), "enough"}), "flipped");
  Steps(1);
  EXPECT_EQ(RetireNext(2), "StaleAttempt");
  EXPECT_EQ(Tell(Retire{To(2)}), "return old") << "the driver ends what is left";
}

TEST_F(Runs, RejectsNextFlipWhenRankStopped) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  Steps(1);
  hands_->gates[1].stopped = true;
  EXPECT_EQ(RetireNext(2), "StaleAttempt");
  hands_->gates[1].stopped = false;
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  ASSERT_NO_FATAL_FAILURE(StageNext(3));
  hands_->gates[1].stopped = true;
  EXPECT_EQ(PermitNext(3), "StaleAttempt");
}

TEST_F(Runs, EndsAfterFence) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  ASSERT_NO_FATAL_FAILURE(StageNext(3));
  ASSERT_EQ(PermitNext(3), "acted");
  for (auto& gate : hands_->gates) gate.stopped = true;
  EXPECT_EQ(Tell(Resolve{To(3), Outcome::kForward, {}, "a death"}), "commit 0 1");
  ASSERT_EQ(Tell(Did(3, {0, 1}, By::kForward)), "acted");
  EXPECT_EQ(hands_->machine.epoch(), 3u);
  for (auto& gate : hands_->gates) gate.stopped = false;
  Steps(1);
  EXPECT_EQ(RetireNext(3), "StaleAttempt");
  EXPECT_EQ(hands_->machine.highest(), 4u) << "the rest is burned with its numbers";
}

TEST_F(Runs, EndsWhenEngineDetaches) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  ASSERT_NO_FATAL_FAILURE(RetireBy(2));
  (void)Tell(EngineGone{1});
  hands_->gates[1].stopped = false;
  Prepare ask = Ask(Kind::kLayout, To(3));
  ask.by_run = true;
  EXPECT_EQ(Tell(ask), "StaleAttempt");
}

TEST_F(Runs, RecordsReasonWhenStuck) {
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  (void)Tell(RunStuck{3, "no memory"});
  ASSERT_NE(hands_->machine.run(), nullptr);
  EXPECT_TRUE(hands_->machine.run()->over);
  EXPECT_EQ(hands_->machine.run()->why, "no memory");
  EXPECT_EQ(hands_->machine.highest(), 4u);
}

TEST_F(Runs, RejectsRunOfOneFlipOrOtherKind) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Tell(Ask(Kind::kLayout, To(2))), "build");
  Plan plan = PlanFor(Kind::kLayout, 2);
  plan.run_last = 2;
  EXPECT_EQ(Tell(Built{plan}), "BadPlan");
  ASSERT_EQ(Tell(Ask(Kind::kLeave, To(2))), "build");
  plan = PlanFor(Kind::kLeave, 2);
  plan.run_last = 3;
  EXPECT_EQ(Tell(Built{plan}), "BadPlan");
}

}  // namespace
}  // namespace tangram::attempt::testing
