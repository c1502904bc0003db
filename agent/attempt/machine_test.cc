// The machine's handlers, one by one.
#include "agent/attempt/machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "agent/attempt/testing/attempts.h"

namespace tangram::attempt::testing {
namespace {

TEST_F(Attempts, RejectsInvalidPrepareWithSpecificReason) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const Prepare right = Ask(Kind::kLayout, To(2));
  const auto why = [&](const std::function<void(Prepare*)>& wrong, const std::string& code) {
    Prepare ask = right;
    wrong(&ask);
    const Later next = hands_->Tell(ask);
    EXPECT_EQ(Show(next), code);
    return WhyOf(next);
  };
  EXPECT_EQ(why([](Prepare* p) { p->header.world = "v"; }, "WrongWorld"),
            "this agent serves world 'w', the call is for world 'v'");
  EXPECT_EQ(why([](Prepare* p) { p->header.attempt = 1; }, "StaleAttempt"),
            "attempt 1 has ended or was aborted, the highest id seen is 1");
  EXPECT_EQ(why([](Prepare* p) { p->header.epoch = 7; }, "StaleEpoch"),
            "the active epoch is 1, the call is for epoch 7");
  EXPECT_EQ(why([](Prepare* p) { p->target_epoch = 3; }, "BadPlan"),
            "target epoch 3 does not follow epoch 1");
  EXPECT_EQ(why([](Prepare* p) { p->kind = Kind::kFirst; }, "BadPlan"),
            "a flip of kind FLIP_KIND_FIRST cannot start from epoch 1");
  EXPECT_EQ(why([](Prepare* p) { p->kind = Kind::kUnspecified; }, "BadPlan"),
            "the flip has no kind");
  EXPECT_EQ(why([](Prepare* p) { p->kind = static_cast<Kind>(9); }, "BadPlan"),
            "the flip has no kind");
  EXPECT_EQ(why(
                [](Prepare* p) {
                  p->geometry = {Code::kBadGeometry, "another model"};
                },
                "BadGeometry"),
            "another model");
  EXPECT_EQ(Tell(right), "build") << "no refusal has burned the number";
}

TEST_F(Attempts, RejectsPlanWithWrongParts) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const auto why = [&](Kind kind, const std::function<void(Plan*)>& wrong) {
    EXPECT_EQ(Tell(Ask(kind, To(2))), "build");
    Plan plan = PlanFor(kind, 2);
    wrong(&plan);
    const Later next = hands_->Tell(Built{plan});
    EXPECT_EQ(hands_->machine.attempt(), nullptr);
    return Show(next) + ": " + WhyOf(next);
  };
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[0].member = "pod/0/7"; }),
            "BadPlan: the plan has a part for member pod/0/7, which is not of this agent (a "
            "restarted process is another member)");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->target_ranks[0] = -1; }),
            "BadPlan: the plan has a part for member pod/0/1, which is not in the target layout");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[0].rank = 1; }),
            "BadPlan: member pod/0/1 is rank 0, its part is for rank 1");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[1] = p->parts[0]; }),
            "BadPlan: the plan has two parts for member pod/0/1");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts.pop_back(); }),
            "BadPlan: the plan has no part for member pod/1/1");
  EXPECT_EQ(why(Kind::kRepair, [](Plan*) {}),
            "WrongPhase: member pod/0/1 has not stopped; a repair requires stopped ranks");
  EXPECT_FALSE(hands_->gates[0].stopped);
  EXPECT_EQ(why(Kind::kRepair,
                [](Plan* p) {
                  p->parts.clear();
                  p->target_ranks = {-1, -1};
                }),
            "BadPlan: the plan has no part for any rank of this agent");
  EXPECT_TRUE(hands_->gates[0].stopped) << "a fence left it out, and its engine may hang";
}

TEST_F(Attempts, AcceptsOnlyFirstLayoutOrJoinOutsideWorld) {
  EXPECT_EQ(Tell(Ask(Kind::kLayout, To(1, 4))), "StaleEpoch");
  EXPECT_EQ(Tell(Ask(Kind::kRepair, To(1, 4))), "StaleEpoch");
  EXPECT_EQ(Tell(Ask(Kind::kJoin, To(1, 4))), "build");
  Plan plan = PlanFor(Kind::kRepair, 1);
  hands_->gates[0].stopped = hands_->gates[1].stopped = true;
  EXPECT_EQ(WhyOf(hands_->Tell(Built{plan})), "a repair cannot add member pod/0/1");
  plan.kind = Kind::kJoin;
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_TRUE(hands_->machine.attempt()->parts.at(0).joining);
}

TEST_F(Attempts, KeepsAttemptIdUsableWhenReservationFails) {
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
  EXPECT_EQ(Tell(Built{PlanFor(Kind::kFirst, 1)}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, {Code::kNoMemory, "too little"}}), "NoMemory");
  ASSERT_EQ(std::get<Ended>(hands_->marks.back()).end, End::kRefused);
  EXPECT_EQ(hands_->machine.highest(), 0u);
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
}

TEST_F(Attempts, RejectsDifferentPlanForSameAttempt) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPrepared, Kind::kFirst, 1));
  Prepare again = Ask(Kind::kFirst, To(1));
  EXPECT_EQ(Tell(again), "ok");
  again.request_hash = "another";
  EXPECT_EQ(WhyOf(hands_->Tell(again)),
            "attempt 1 is prepared with another plan; use a new attempt id");
}

TEST_F(Attempts, ReportsFailureUntilAbort) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kFailed, Kind::kFirst, 1));
  EXPECT_EQ(WhyOf(hands_->Tell(Stage{To(1)})), "the attempt failed, abort it: no source");
  EXPECT_EQ(WhyOf(hands_->Tell(Permit{To(1)})),
            "attempt 1 cannot be permitted in PHASE_FAILED: no source");
  EXPECT_EQ(Tell(Abort{To(1), "failed"}), "drop");
  EXPECT_EQ(Tell(Dropped{1}), "acted");
  EXPECT_EQ(hands_->machine.last()->error, "no source");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "StaleAttempt") << "burned";
}

TEST_F(Attempts, RejectsPrepareAfterAbortOfUnknownAttempt) {
  EXPECT_EQ(Tell(Abort{To(5), "test"}), "ok");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(5))), "StaleAttempt");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(6))), "build");
}

TEST_F(Attempts, FailsAttemptWhenEngineDetachesBeforePermit) {
  for (const Phase phase : {Phase::kPrepared, Phase::kStaging, Phase::kStaged}) {
    hands_ = std::make_unique<Hands>(kRanks);
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_NO_FATAL_FAILURE(Reach(phase, Kind::kLayout, 2));
    EXPECT_EQ(Tell(EngineGone{1}), "ok");
    EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
    EXPECT_EQ(hands_->machine.attempt()->error, "device 1: the engine detached");
    EXPECT_TRUE(hands_->gates[1].stopped);
    EXPECT_EQ(Tell(Staged{2, OkStatus()}), "ok") << "too late";
    EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
  }
}

// The engine has replied, and the agent still waits for the replies of others.
TEST_F(Attempts, FailsAttemptWhenEngineDetachesDuringPrepare) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kIdle, Kind::kFirst, 1));
  EXPECT_EQ(Tell(EngineGone{1}), "ok");
  EXPECT_EQ(Tell(Reserved{1, OkStatus()}), "acted");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPrepared) << "a first layout needs none";
  hands_ = std::make_unique<Hands>(kRanks);
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kIdle, Kind::kLayout, 2));
  EXPECT_EQ(Tell(EngineGone{1}), "ok");
  EXPECT_EQ(Tell(Reserved{2, OkStatus()}), "acted");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
  EXPECT_EQ(hands_->machine.attempt()->error, "device 1: the engine detached");
  EXPECT_EQ(Tell(Abort{To(2), "failed"}), "drop");
}

TEST_F(Attempts, KeepsFirstLayoutAttemptWhenEngineDetaches) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaging, Kind::kFirst, 1));
  EXPECT_EQ(Tell(EngineGone{0}), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kStaging) << "a first layout needs none";
  EXPECT_FALSE(hands_->gates[0].stopped) << "it is in no layout";
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(EngineGone{0}), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPermitted);
}

TEST_F(Attempts, PermitsAllGatesOrNone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kLayout, 2));
  hands_->gates[1].state = GateState::kFlipped;
  EXPECT_EQ(Tell(Permit{To(2)}), "WrongPhase");
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kStaged);
}

TEST_F(Attempts, AcceptsEngineFlipOnlyWithLatchedVoteWhileStepping) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  const EngineFlip flip{To(2), 0, "target"};
  EXPECT_EQ(WhyOf(hands_->Tell(flip)),
            "device 0: engine requested the flip of attempt 2 without a latched vote");
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = true;
  EXPECT_EQ(WhyOf(hands_->Tell(flip)),
            "device 0: engine requested the flip of attempt 2 after it had stopped");
  hands_->gates[0].stopped = false;
  EXPECT_EQ(Tell(flip), "commit 0");
  EXPECT_EQ(Tell(flip), "wait") << "its memory is on the way";
  EXPECT_EQ(Tell(Did(2, {0}, By::kEngine)), "acted");
  EXPECT_EQ(Tell(flip), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPermitted) << "the other has not";
  EXPECT_EQ(hands_->machine.ranks()[0].epoch, 2u);
  EXPECT_EQ(hands_->machine.epoch(), 1u) << "what is in force for all";
  FlipByEngine(To(2), 1);
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  EXPECT_EQ(hands_->machine.epoch(), 2u);
  EXPECT_EQ(Tell(EngineFlip{To(2), 5, "target"}), "WrongPhase") << "it has no part";
}

TEST_F(Attempts, AllowsFlipRetryWhenCommitFails) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  EXPECT_EQ(Tell(EngineFlip{To(2), 0, "target"}), "commit 0");
  hands_->changed = false;
  EXPECT_EQ(Tell(Did(2, {0}, By::kEngine, 0)), "Internal");
  EXPECT_TRUE(hands_->changed) << "who waited for it looks again";
  EXPECT_FALSE(hands_->machine.attempt()->any_flipped());
  EXPECT_EQ(Tell(EngineFlip{To(2), 0, "target"}), "commit 0");
}

TEST_F(Attempts, DelaysDriverCallsDuringCommit) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  ASSERT_EQ(Tell(EngineFlip{To(2), 0, "target"}), "commit 0");
  const Header h = To(2);
  EXPECT_EQ(Tell(Abort{h, "test"}), "wait");
  EXPECT_EQ(Tell(Retire{h}), "wait");
  EXPECT_EQ(Tell(Release{h, {}, true, "end"}), "wait");
  for (const Outcome outcome : {Outcome::kHold, Outcome::kStay, Outcome::kForward}) {
    EXPECT_EQ(Tell(Resolve{h, outcome, {}, "dead"}), "wait");
  }
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {0, 1}, true}), "wait");
  EXPECT_EQ(Tell(Did(2, {0}, By::kEngine)), "acted");
  EXPECT_EQ(Tell(Abort{h, "test"}), "flipped");
}

TEST_F(Attempts, WithdrawsPermitFromAllGatesOrNone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  EXPECT_EQ(Tell(Abort{To(2), "test"}), "ask peers");
  EXPECT_EQ(hands_->gates[0].state, GateState::kArmed) << "armed again";
  EXPECT_EQ(hands_->gates[1].state, GateState::kLatched);
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kNothing, {}, false}), "wait");
  ASSERT_TRUE(hands_->Move(1, GateEvent::kUnlatch));
  EXPECT_EQ(Tell(Abort{To(2), "test"}), "drop");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
  EXPECT_EQ(Tell(Dropped{2}), "acted");
  EXPECT_EQ(hands_->machine.last()->error, "aborted: test");
  EXPECT_EQ(Tell(Abort{To(2), "again"}), "ok");
}

TEST_F(Attempts, AbortsLatchedVoteWhenPeerAbortedAndEngineDetached) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  EXPECT_EQ(Tell(Abort{To(2), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {0}, false}), "wait") << "1 lives";
  const Later late = hands_->Tell(PeersSaid{2, attempt::Say::kBurned, {}, true});
  EXPECT_EQ(Show(late), "Unavailable");
  EXPECT_EQ(
      WhyOf(late),
      "attempt 2: this agent has voted and the outcome is not known after 100 ms; retry the abort");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {1}, true}), "drop");
  EXPECT_EQ(hands_->gates[1].state, GateState::kIdle);
}

TEST_F(Attempts, ReportsFlippedWhenFlipOccursDuringPeerQuery) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  const Header h = To(2);
  EXPECT_EQ(Tell(Abort{h, "test"}), "ask peers");
  FlipByEngine(h, 0);
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {1}, false}), "flipped");
}

TEST_F(Attempts, DoesNotWithdrawVotesSentToPeers) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Abort{To(1), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kNothing, {}, false}), "wait");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kBurned, {}, false}), "drop");
}

TEST_F(Attempts, FollowsFlippedPeerWhenVoteMissing) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Abort{To(1), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, false}), "commit 0 1");
  EXPECT_EQ(Tell(Did(1, {0, 1}, By::kPeer, 0)), "wait");
  EXPECT_EQ(hands_->machine.attempt()->error, "no");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, true}), "commit 0 1");
  EXPECT_EQ(Tell(Did(1, {0, 1}, By::kPeer, 0)), "Unavailable");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, false}), "commit 0 1");
  EXPECT_EQ(Tell(Did(1, {0, 1}, By::kPeer, 1)), "flipped") << "one has, so it goes";
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPermitted);
  EXPECT_EQ(Tell(Word{To(1, 0), "target", {2}, "other"}), "commit 1");
  EXPECT_EQ(Tell(Did(1, {1}, By::kWords)), "ok");
  EXPECT_EQ(hands_->machine.attempt()->error, "");
}

TEST_F(Attempts, FlipsWithoutPeerVotesInOneAgentWorld) {
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
  Plan plan = PlanFor(Kind::kFirst, 1);
  plan.pods.pop_back();
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, OkStatus()}), "acted");
  EXPECT_EQ(Tell(Stage{To(1)}), "start staging");
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(WordsOut{1}), "commit 0 1");
  EXPECT_EQ(Tell(WordsOut{1}), "ok") << "they are on their way";
}

TEST_F(Attempts, CountsVoteReceivedBeforePermit) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Word{To(1), "target", {2}, "other"}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(WordsOut{1}), "commit 0 1");
}

TEST_F(Attempts, IgnoresVotesWhenHeld) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kRepair, 2));
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kHold, {}, ""}), "ok");
  EXPECT_EQ(Tell(Word{To(2), "target", {2}, "other"}), "ok");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kFlipped, {}, false}), "wait");
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kForward, {}, "dead"}), "commit 0 1");
}

// Otherwise a leader would see only the previous epoch, and rule that it stays active.
TEST_F(Attempts, FlipsRemainingRanksOnHoldWhenOneFlipped) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  FlipByEngine(To(2), 0);
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  EXPECT_EQ(hands_->machine.epoch(), 1u) << "the lowest of its ranks";
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kHold, {}, ""}), "commit 1");
  EXPECT_TRUE(hands_->gates[1].stopped) << "its engine may hang, and wake up";
  EXPECT_EQ(Tell(Did(2, {1}, By::kForward, 0)), "Internal");
  EXPECT_FALSE(hands_->machine.attempt()->held) << "it is told again";
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kHold, {}, ""}), "commit 1");
  EXPECT_EQ(Tell(Did(2, {1}, By::kForward)), "acted");
  EXPECT_EQ(hands_->machine.epoch(), 2u);
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kHold, {}, ""}), "ok") << "it flipped";
}

TEST_F(Attempts, KeepsRankStoppedAfterRepairWhenEngineDetached) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kRepair, 2));
  EXPECT_EQ(Tell(Word{To(2), "target", {2}, "other"}), "commit 0 1");
  EXPECT_EQ(Tell(EngineGone{1}), "ok");
  EXPECT_EQ(Tell(Did(2, {0, 1}, By::kWords)), "ok");
  EXPECT_FALSE(hands_->gates[0].stopped);
  EXPECT_TRUE(hands_->gates[1].stopped) << "it went while the memory was on its way";
}

TEST_F(Attempts, ReleasesExcludedRankWhenRepairRetires) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  hands_->gates[0].stopped = true;
  EXPECT_EQ(Tell(Ask(Kind::kRepair, To(2))), "build");
  Plan plan = PlanFor(Kind::kRepair, 2);
  plan.parts.pop_back();
  plan.target_ranks[1] = -1;
  plan.pods = {"here"};
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_TRUE(hands_->gates[1].stopped) << "its engine may hang";
  EXPECT_EQ(Tell(Reserved{2, OkStatus()}), "acted");
  EXPECT_EQ(Tell(Stage{To(2)}), "start staging");
  EXPECT_EQ(Tell(Staged{2, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(2)}), "tell words");
  EXPECT_EQ(Tell(WordsOut{2}), "commit 0");
  EXPECT_EQ(Tell(Did(2, {0}, By::kWords)), "ok");
  EXPECT_TRUE(hands_->machine.ranks()[1].removed);
  EXPECT_EQ(hands_->machine.epoch(), 2u);
  hands_->gates[0].steps = 1;
  EXPECT_EQ(Tell(Retire{To(2)}), "return old");
  EXPECT_EQ(Tell(Returned{2, OkStatus()}), "dismiss 1");
  EXPECT_EQ(Tell(Dismissed{1}), "empty as pod/1/2");
  EXPECT_EQ(Tell(Emptied{1}), "acted");
  EXPECT_EQ(hands_->machine.ranks()[1].member, "pod/1/2");
  EXPECT_FALSE(hands_->machine.ranks()[1].removed);
}

TEST_F(Attempts, ReleasesExcludedRankWhenFenceDecidesRepair) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  hands_->gates[0].stopped = true;
  EXPECT_EQ(Tell(Ask(Kind::kRepair, To(2))), "build");
  Plan plan = PlanFor(Kind::kRepair, 2);
  plan.parts.pop_back();
  plan.target_ranks[1] = -1;
  plan.pods = {"here"};
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_EQ(Tell(Reserved{2, OkStatus()}), "acted");
  EXPECT_EQ(Tell(Stage{To(2)}), "start staging");
  EXPECT_EQ(Tell(Staged{2, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(2)}), "tell words");
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kForward, {}, "dead"}), "commit 0");
  EXPECT_EQ(Tell(Did(2, {0}, By::kForward)), "acted");
  EXPECT_TRUE(hands_->machine.ranks()[1].removed);
  EXPECT_EQ(hands_->machine.epoch(), 2u) << "that of the rank that goes on";
  hands_->gates[0].steps = 1;
  EXPECT_EQ(Tell(Retire{To(2)}), "return old");
  EXPECT_EQ(Tell(Returned{2, OkStatus()}), "dismiss 1");
}

TEST_F(Attempts, RejectsFenceOutcomeUntilAllMembersStopped) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = true;
  Resolve stay{To(2), Outcome::kStay, {}, "dead"};
  EXPECT_EQ(WhyOf(hands_->Tell(stay)),
            "member pod/1/1 has not stopped, the outcome is not known yet; retry later");
  stay.lost = {"pod/1/1"};
  EXPECT_EQ(Tell(stay), "drop, keep") << "the fence left it out";
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
  EXPECT_TRUE(hands_->gates[1].stopped);
  EXPECT_EQ(Tell(Dropped{2}), "acted");
  EXPECT_EQ(hands_->machine.last()->error, "aborted by a fence: dead");
  EXPECT_EQ(Tell(stay), "ok");
  EXPECT_EQ(WhyOf(hands_->Tell(Resolve{To(2), Outcome::kForward, {}, "dead"})),
            "attempt 2 has ended on this agent: it did not flip and can no longer flip");
}

TEST_F(Attempts, RollsForwardWithOrWithoutLatchedVote) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = hands_->gates[1].stopped = true;
  const Resolve forward{To(2), Outcome::kForward, {}, "dead"};
  EXPECT_EQ(Tell(forward), "commit 0 1");
  EXPECT_EQ(Tell(Did(2, {0, 1}, By::kForward, 0)), "Internal");
  EXPECT_EQ(Tell(forward), "commit 0 1");
  EXPECT_EQ(Tell(Did(2, {0, 1}, By::kForward)), "acted");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  EXPECT_TRUE(hands_->gates[0].stopped) << "a repair follows";
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kStay, {}, "dead"}), "WrongPhase");
  EXPECT_EQ(Tell(forward), "acted");
}

TEST_F(Attempts, PermitsUninformedJoinerByFence) {
  EXPECT_EQ(Tell(Ask(Kind::kJoin, To(1, 4))), "build");
  Plan plan = PlanFor(Kind::kJoin, 1);
  plan.from_epoch = 4;
  plan.target_epoch = 5;
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, OkStatus()}), "acted");
  const Resolve forward{To(1, 4), Outcome::kForward, {}, "dead"};
  EXPECT_EQ(WhyOf(hands_->Tell(forward)), "attempt 1 cannot roll forward from PHASE_PREPARED");
  EXPECT_EQ(Tell(Stage{To(1, 4)}), "start staging");
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(forward), "commit 0 1");
  EXPECT_TRUE(hands_->gates[0].stopped && hands_->gates[1].stopped) << "as those that they join";
  EXPECT_EQ(Tell(Did(1, {0, 1}, By::kForward)), "acted");
  EXPECT_EQ(hands_->machine.epoch(), 5u);
}

TEST_F(Attempts, RemovesLeaverFromLayoutWhenRetired) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(Tell(Ask(Kind::kLeave, To(2))), "build");
  Plan plan = PlanFor(Kind::kLeave, 2);
  plan.target_ranks = {0, -1};
  plan.pods = {"here", "other"};
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_TRUE(hands_->machine.attempt()->parts.at(1).leaving);
  EXPECT_EQ(Tell(Reserved{2, OkStatus()}), "acted");
  EXPECT_EQ(Tell(Stage{To(2)}), "start staging");
  EXPECT_EQ(Tell(Staged{2, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(2)}), "acted");
  const Header h = To(2);
  FlipByEngine(h, 1);
  FlipByEngine(h, 0);
  EXPECT_EQ(WhyOf(hands_->Tell(Retire{h})),
            "rank 0 has not completed a step of epoch 2; its old pieces are still sources for a "
            "repair, retry later");
  hands_->gates[0].steps = 1;
  EXPECT_EQ(Tell(Retire{h}), "return old") << "a leaver steps no more";
  EXPECT_EQ(Tell(Returned{2, {Code::kInternal, "no"}}), "Internal");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped) << "to be tried again";
  EXPECT_EQ(Tell(Returned{2, OkStatus()}), "acted");
  EXPECT_EQ(hands_->machine.ranks()[1].epoch, 0u);
  EXPECT_EQ(hands_->gates[1].state, GateState::kIdle);
  EXPECT_EQ(Tell(Retire{h}), "ok");
}

TEST_F(Attempts, RetainsOldPiecesWhenRepairFollowsFlip) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kFlipped, Kind::kLayout, 2));
  for (Hands::Gate& gate : hands_->gates) gate.stopped = true;
  EXPECT_EQ(Tell(Ask(Kind::kRepair, To(3))), "build");
  EXPECT_EQ(Tell(Built{PlanFor(Kind::kRepair, 3)}), "keep old");
  EXPECT_TRUE(hands_->machine.Knows(2));
  EXPECT_EQ(Tell(Kept{2}), "reserve");
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
  EXPECT_EQ(std::get<Ended>(hands_->marks.back()).end, End::kFlipped);
  EXPECT_EQ(Tell(Reserved{3, OkStatus()}), "acted");
  EXPECT_FALSE(hands_->machine.Knows(2));
  EXPECT_TRUE(hands_->machine.ViewOf(2, hands_->Looks()).flipped);
}

TEST_F(Attempts, ReleaseRequiresLaterEpochAndAbortsAttemptOfMember) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(WhyOf(hands_->Tell(Release{To(0, 1), {"pod/1/1"}, false, "gone"})),
            "member pod/1/1 is rank 1 of epoch 1; only a later epoch can exclude it");
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  EXPECT_EQ(Tell(Release{To(0, 2), {"elsewhere/0/1"}, false, "gone"}), "acted");
  EXPECT_EQ(Tell(Release{To(0, 2), {"pod/1/1"}, false, "gone"}), "drop");
  EXPECT_EQ(Tell(Dropped{2}), "dismiss 1");
  EXPECT_TRUE(hands_->gates[1].stopped);
  EXPECT_EQ(Tell(Dismissed{1}), "empty as pod/1/2");
  EXPECT_EQ(Tell(Emptied{1}), "acted");
  EXPECT_EQ(hands_->machine.ranks()[1].rank, -1);
  EXPECT_EQ(hands_->machine.epoch(), 1u);
}

// Regression: an engine that attached during the release received the old member id, and no peer of
// the new member ever connected to it.
TEST_F(Attempts, RejectsEngineAttachDuringRelease) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(Tell(Release{To(0, 2), {"pod/1/1"}, false, "gone"}), "dismiss 1");
  EXPECT_EQ(WhyOf(hands_->Tell(EngineCame{1})),
            "member pod/1/1 is being released; attach again later");
  EXPECT_EQ(Tell(EngineCame{0}), "ok") << "its rank stays";
  EXPECT_EQ(Tell(Dismissed{1}), "empty as pod/1/2");
  EXPECT_EQ(Tell(EngineCame{1}), "WrongPhase");
  EXPECT_TRUE(hands_->gates[1].stopped);
  EXPECT_EQ(Tell(Emptied{1}), "acted");
  EXPECT_EQ(Tell(EngineCame{1}), "ok");
  EXPECT_FALSE(hands_->gates[1].stopped);
}

TEST_F(Attempts, ReleasesAllRanksWhenWorldEnds) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  FlipByEngine(To(2), 0);
  EXPECT_EQ(Tell(Release{To(0, 0), {}, true, "end"}), "keep old");
  EXPECT_EQ(Tell(EngineFlip{To(2, 1), 1, "target"}), "WrongPhase") << "the gates are fenced";
  EXPECT_EQ(Tell(Kept{2}), "dismiss 0");
  EXPECT_EQ(Tell(Dismissed{0}), "empty as pod/0/2");
  EXPECT_EQ(Tell(Emptied{0}), "dismiss 1");
  EXPECT_EQ(Tell(Dismissed{1}), "empty as pod/1/2");
  EXPECT_EQ(Tell(Emptied{1}), "acted");
  EXPECT_EQ(hands_->machine.epoch(), 0u);
  EXPECT_EQ(hands_->machine.attempt(), nullptr);
}

TEST_F(Attempts, IgnoresVotesDuringCleanup) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  const Word word{To(1), "target", {2}, "other"};
  EXPECT_EQ(Tell(word), "commit 0 1");
  EXPECT_EQ(Tell(Did(1, {0, 1}, By::kWords, 1)), "ok") << "the second has not";
  EXPECT_EQ(Tell(Release{To(0, 0), {}, true, "end"}), "keep old");
  EXPECT_EQ(Tell(word), "ok");
  EXPECT_EQ(Tell(WordsOut{1}), "ok");
  EXPECT_FALSE(hands_->machine.attempt()->committing());
}

TEST_F(Attempts, StopsEngineWhenItAttachesToLayout) {
  EXPECT_EQ(Tell(EngineCame{0}), "ok");
  EXPECT_FALSE(hands_->gates[0].stopped);
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(Tell(EngineCame{0}), "ok");
  EXPECT_TRUE(hands_->gates[0].stopped);
}

TEST_F(Attempts, RestoresEpochAndHighestAttemptFromResumedRank) {
  EXPECT_EQ(Tell(Resumed{1, "pod/1/0", 4, 9, 7}), "ok");
  EXPECT_EQ(hands_->machine.epoch(), 9u);
  EXPECT_EQ(hands_->machine.ranks()[1].member, "pod/1/0");
  EXPECT_EQ(hands_->machine.highest(), 7u);
  EXPECT_EQ(Tell(Resumed{0, "pod/0/0", -1, 3, 2}), "ok");
  EXPECT_EQ(hands_->machine.ranks()[0].epoch, 0u) << "it was in none";
  EXPECT_EQ(hands_->machine.highest(), 7u);
}

TEST_F(Attempts, ReportsPhaseFlipAndVoteToPeers) {
  const auto view = [&](uint64_t attempt) {
    const Machine::View v = hands_->machine.ViewOf(attempt, hands_->Looks());
    return std::string(attempt::NameOf(v.phase)) + (v.flipped ? " flipped" : "") +
           (v.contributed ? " contributed" : "");
  };
  EXPECT_EQ(view(1), "PHASE_UNSPECIFIED");
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  EXPECT_EQ(view(1), "PHASE_PERMITTED contributed");
  hands_ = std::make_unique<Hands>(kRanks);
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(view(1), "PHASE_IDLE flipped contributed");
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  EXPECT_EQ(view(2), "PHASE_PERMITTED");
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  EXPECT_EQ(view(2), "PHASE_PERMITTED contributed");
  ASSERT_TRUE(hands_->Move(0, GateEvent::kUnlatch));
  EXPECT_EQ(Tell(Abort{To(2), "test"}), "drop");
  EXPECT_EQ(Tell(Dropped{2}), "acted");
  EXPECT_EQ(view(2), "PHASE_IDLE");
}

// An agent may live for months, and a world that follows its load flips every few minutes.
TEST_F(Attempts, ForgetsOldestFlips) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const uint64_t last = Machine::kMostFlipped + 1;
  for (uint64_t attempt = 2; attempt <= last; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(Reach(Phase::kFlipped, Kind::kLayout, attempt));
    ASSERT_NO_FATAL_FAILURE(Retired(attempt));
  }
  const auto flipped = [&](uint64_t attempt) {
    return hands_->machine.ViewOf(attempt, hands_->Looks()).flipped;
  };
  EXPECT_FALSE(flipped(1)) << "as many have followed as it remembers";
  EXPECT_TRUE(flipped(2));
  EXPECT_TRUE(flipped(last));
}

TEST_F(Attempts, AllowsPullsOnlyForAttemptInProgress) {
  const Machine& machine = hands_->machine;
  EXPECT_EQ(machine.CheckPull({"v", 0, 1}).message(), "this agent serves world 'w'");
  EXPECT_EQ(machine.CheckPull(To(1)).code(), Code::kNotHeld);
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(machine.CheckPull(To(1)).code(), Code::kStaleAttempt);
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kLayout, 2));
  EXPECT_TRUE(machine.CheckPull(To(2)).ok());
  EXPECT_EQ(machine.CheckPull(To(3)).code(), Code::kNotHeld);
  EXPECT_EQ(machine.CheckKvPull(To(2), 0, false).message(),
            "KV pull is not allowed in PHASE_STAGED");
  EXPECT_TRUE(machine.CheckKvPull(To(2), 0, true).ok());
  EXPECT_EQ(machine.CheckKvPull(To(2), 5, true).code(), Code::kWrongPhase);
  EXPECT_EQ(Tell(Permit{To(2)}), "acted");
  EXPECT_TRUE(machine.CheckKvPull(To(2), 0, false).ok());
  EXPECT_TRUE(machine.CheckKvPull(To(2), 0, true).ok());
  EXPECT_EQ(machine.CheckKvPull(To(2), 5, false).code(), Code::kWrongPhase);
}

}  // namespace
}  // namespace tangram::attempt::testing
