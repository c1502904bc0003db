// The table of an attempt, row by row.
#include "agent/attempt/machine.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "agent/attempt/testing/hands.h"

namespace tangram::attempt::testing {
namespace {

const char* NameOf(Code code) {
  static const std::map<Code, const char*> names = {
      {Code::kOk, "Ok"},
      {Code::kWrongWorld, "WrongWorld"},
      {Code::kStaleEpoch, "StaleEpoch"},
      {Code::kStaleAttempt, "StaleAttempt"},
      {Code::kBadPlan, "BadPlan"},
      {Code::kBadGeometry, "BadGeometry"},
      {Code::kEngine, "Engine"},
      {Code::kWrongPhase, "WrongPhase"},
      {Code::kNotHeld, "NotHeld"},
      {Code::kUnauthenticated, "Unauthenticated"},
      {Code::kInvalid, "Invalid"},
      {Code::kUnavailable, "Unavailable"},
      {Code::kNoMemory, "NoMemory"},
      {Code::kInternal, "Internal"},
  };
  return names.at(code);
}

std::string Say(const Next& next) {
  struct {
    std::string operator()(const Answer& a) const {
      if (!a.status.ok()) return NameOf(a.status.code());
      return a.flipped ? "flipped" : a.acted ? "acted" : "ok";
    }
    std::string operator()(const Arm&) const { return "arm"; }
    std::string operator()(const TakeBack&) const { return "take back"; }
    std::string operator()(const FlipGate&) const { return "flip gate"; }
    std::string operator()(const Build&) const { return "build"; }
    std::string operator()(const KeepOld&) const { return "keep old"; }
    std::string operator()(const Reserve&) const { return "reserve"; }
    std::string operator()(const StartStaging&) const { return "start staging"; }
    std::string operator()(const TellWords&) const { return "tell words"; }
    std::string operator()(const Commit& c) const { return "commit " + std::to_string(c.device); }
    std::string operator()(const AskPeers&) const { return "ask peers"; }
    std::string operator()(const Drop& d) const { return d.keep ? "drop, keep" : "drop"; }
    std::string operator()(const ReturnOld&) const { return "return old"; }
    std::string operator()(const Dismiss& d) const { return "dismiss " + std::to_string(d.device); }
    std::string operator()(const Empty& e) const { return "empty as " + e.member; }
    std::string operator()(const Wait&) const { return "wait"; }
  } say;
  return std::visit(say, next);
}

std::string WhyOf(const Next& next) { return std::get<Answer>(next).status.message(); }

constexpr uint32_t kRanks = 2;

// An agent with two ranks; the world has a third one, in pod "other".
class Attempts : public ::testing::Test {
 protected:
  static Header To(uint64_t attempt, uint64_t epoch) { return {"w", epoch, attempt}; }
  Header To(uint64_t attempt) const { return To(attempt, hands_->machine.epoch()); }

  static Prepare Ask(Kind kind, const Header& header) {
    return {header, kind, header.epoch + 1, "request", OkStatus()};
  }

  // Both ranks to the same places, as ranks 0 and 1 of three.
  Plan PlanFor(Kind kind, uint64_t attempt) const {
    Plan plan;
    plan.attempt = attempt;
    plan.kind = kind;
    plan.from_epoch = hands_->machine.epoch();
    plan.target_epoch = plan.from_epoch + 1;
    plan.request_hash = "request";
    plan.target_hash = "target";
    plan.pods = {"here", "here", "other"};
    plan.target_ranks = {0, 1};
    for (uint32_t device = 0; device < kRanks; ++device) {
      plan.parts.push_back({hands_->machine.ranks()[device].member, device});
    }
    return plan;
  }

  std::string Tell(const Event& event) { return Say(hands_->Tell(event)); }

  // From nothing under way to the phase.
  void Reach(Phase phase, Kind kind, uint64_t attempt) {
    const Header header = To(attempt);
    if (kind == Kind::kRepair) {
      for (Hands::Gate& gate : hands_->gates) gate.stopped = true;
    }
    ASSERT_EQ(Tell(Ask(kind, header)), "build");
    ASSERT_EQ(Tell(Built{PlanFor(kind, attempt)}), "reserve");
    if (phase == Phase::kIdle) return;
    ASSERT_EQ(Tell(Reserved{attempt, OkStatus()}), "acted");
    if (phase == Phase::kPrepared) return;
    ASSERT_EQ(Tell(Stage{header}), "start staging");
    ASSERT_EQ(Tell(Begun{attempt}), "acted");
    if (phase == Phase::kStaging) return;
    if (phase == Phase::kFailed) {
      ASSERT_EQ(Tell(Staged{attempt, {Code::kUnavailable, "no source"}}), "ok");
      return;
    }
    ASSERT_EQ(Tell(Staged{attempt, OkStatus()}), "ok");
    if (phase == Phase::kStaged) return;
    const bool by_agents = kind == Kind::kFirst || kind == Kind::kRepair;
    ASSERT_EQ(Tell(Permit{header}), by_agents ? "tell words" : "acted");
    if (phase == Phase::kPermitted) return;
    if (by_agents) {
      ASSERT_EQ(Tell(Word{header, "target", {2}, "other"}), "commit 0");
      ASSERT_EQ(Tell(Committed{attempt, 0, By::kWords, OkStatus(), true}), "commit 1");
      ASSERT_EQ(Tell(Committed{attempt, 1, By::kWords, OkStatus(), true}), "ok");
    } else {
      for (uint32_t device = 0; device < kRanks; ++device) FlipByEngine(header, device);
    }
    ASSERT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  }

  void FlipByEngine(const Header& header, uint32_t device) {
    ASSERT_TRUE(hands_->Move(device, GateEvent::kWord));
    ASSERT_EQ(Tell(EngineFlip{header, device, "target"}), "commit " + std::to_string(device));
    ASSERT_EQ(Tell(Committed{header.attempt, device, By::kEngine, OkStatus(), true}), "acted");
  }

  // To the first layout, retired: epoch 1, attempt 1.
  void Begin() {
    ASSERT_NO_FATAL_FAILURE(Reach(Phase::kFlipped, Kind::kFirst, 1));
    Retired(1);
  }
  void Retired(uint64_t attempt) {
    for (Hands::Gate& gate : hands_->gates) gate.steps = 1;
    ASSERT_EQ(Tell(Retire{To(attempt)}), "return old");
    ASSERT_EQ(Tell(Returned{attempt, OkStatus()}), "acted");
  }

  std::unique_ptr<Hands> hands_ = std::make_unique<Hands>(kRanks);
};

// Every call in every phase; attempt 2, by engines or a repair. `over`: 1 flipped, 2 aborted.
struct Moment {
  const char* name;
  std::optional<Phase> phase;  // nothing: it was never heard of
  bool over = false;
};
constexpr Moment kMoments[] = {
    {"unheard of", std::nullopt},       {"reserving", Phase::kIdle},
    {"prepared", Phase::kPrepared},     {"staging", Phase::kStaging},
    {"staged", Phase::kStaged},         {"permitted", Phase::kPermitted},
    {"flipped", Phase::kFlipped},       {"failed", Phase::kFailed},
    {"retired", Phase::kFlipped, true}, {"aborted", Phase::kFailed, true},
};

class Table : public Attempts {
 protected:
  void At(const Moment& moment, Kind kind) {
    ASSERT_NO_FATAL_FAILURE(Begin());
    from_ = hands_->machine.epoch();
    if (moment.phase) {
      ASSERT_NO_FATAL_FAILURE(Reach(*moment.phase, kind, 2));
    }
    if (!moment.over) return;
    if (*moment.phase == Phase::kFlipped) return Retired(2);
    ASSERT_EQ(Tell(Abort{To(2), "test"}), "drop");
    ASSERT_EQ(Tell(Dropped{2}), "acted");
  }

  struct Row {
    const char* name;
    std::function<Event(const Header&)> event;
    // By moment, as they stand in kMoments.
    std::array<const char*, std::size(kMoments)> want;
  };
  void Check(Kind kind, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      for (size_t m = 0; m < std::size(kMoments); ++m) {
        hands_ = std::make_unique<Hands>(kRanks);
        ASSERT_NO_FATAL_FAILURE(At(kMoments[m], kind)) << kMoments[m].name;
        const std::string before = State();
        const Next next = hands_->Tell(row.event(To(2, from_)));
        EXPECT_EQ(Say(next), row.want[m]) << row.name << ", " << kMoments[m].name;
        const auto* answer = std::get_if<Answer>(&next);
        if (answer == nullptr || answer->status.ok()) continue;
        EXPECT_EQ(State(), before) << row.name << ", " << kMoments[m].name << ": refused";
        EXPECT_FALSE(answer->status.message().empty());
      }
    }
  }
  std::string State() const {
    const Machine& machine = hands_->machine;
    std::string out = std::to_string(machine.highest());
    for (const auto* attempt : {machine.attempt(), machine.last()}) {
      if (attempt == nullptr) continue;
      out += " " + std::to_string(attempt->plan.attempt) + attempt::NameOf(attempt->phase) +
             attempt->error;
    }
    for (const Hands::Gate& gate : hands_->gates) {
      out += " " + std::to_string(static_cast<int>(gate.state)) + std::to_string(gate.stopped);
    }
    return out;
  }
  uint64_t from_ = 0;
};

TEST_F(Table, WhenEnginesGo) {
  Check(Kind::kLayout,
        {
            {"prepare",
             [](const Header& h) { return Ask(Kind::kLayout, h); },
             {"build", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "StaleAttempt", "StaleAttempt"}},
            {"prepare the next",
             [](const Header& h) { return Ask(Kind::kLayout, To(3, h.epoch)); },
             {"build", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "WrongPhase", "WrongPhase", "StaleEpoch", "build"}},
            {"repair",
             [](const Header& h) { return Ask(Kind::kRepair, To(3, h.epoch + 1)); },
             {"StaleEpoch", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "build", "WrongPhase", "build", "StaleEpoch"}},
            {"stage",
             [](const Header& h) { return Stage{h}; },
             {"WrongPhase", "ok", "start staging", "ok", "ok", "ok", "ok", "WrongPhase",
              "StaleAttempt", "StaleAttempt"}},
            {"permit",
             [](const Header& h) { return Permit{h}; },
             {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "acted", "ok", "ok",
              "WrongPhase", "StaleAttempt", "StaleAttempt"}},
            {"a permit is seen",
             [](const Header&) { return PermitSeen{2}; },
             {"ok", "ok", "ok", "ok", "acted", "ok", "ok", "ok", "ok", "ok"}},
            {"staged",
             [](const Header&) {
               return Staged{2, OkStatus()};
             },
             {"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok"}},
            {"abort",
             [](const Header& h) {
               return Abort{h, "test"};
             },
             {"ok", "drop", "drop", "drop", "drop", "drop", "flipped", "drop", "flipped", "ok"}},
            {"abort the next",
             [](const Header& h) {
               return Abort{To(3, h.epoch), "test"};
             },
             {"ok", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "WrongPhase", "WrongPhase", "ok", "ok"}},
            {"retire",
             [](const Header& h) { return Retire{h}; },
             {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "WrongPhase", "WrongPhase", "ok", "StaleAttempt"}},
            {"hold",
             [](const Header& h) {
               return Resolve{h, Outcome::kHold, {}, ""};
             },
             {"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok"}},
            {"stay, while it steps",
             [](const Header& h) {
               return Resolve{h, Outcome::kStay, {}, "dead"};
             },
             {"ok", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "WrongPhase", "WrongPhase", "WrongPhase", "ok"}},
            {"forward, while it steps",
             [](const Header& h) {
               return Resolve{h, Outcome::kForward, {}, "dead"};
             },
             {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "acted", "WrongPhase", "ok", "WrongPhase"}},
            {"no outcome",
             [](const Header& h) {
               return Resolve{h, {}, {}, "dead"};
             },
             {"Invalid", "Invalid", "Invalid", "Invalid", "Invalid", "Invalid", "Invalid",
              "Invalid", "Invalid", "Invalid"}},
            {"a word",
             [](const Header& h) {
               return Word{h, "target", {2}, "other"};
             },
             {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "WrongPhase", "WrongPhase", "ok", "StaleAttempt"}},
            {"a flip without a word",
             [](const Header& h) {
               return EngineFlip{h, 0, "target"};
             },
             {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
              "ok", "WrongPhase", "StaleAttempt", "StaleAttempt"}},
            {"a flip to elsewhere",
             [](const Header& h) {
               return EngineFlip{h, 0, "another"};
             },
             {"WrongPhase", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan",
              "BadPlan", "StaleAttempt", "StaleAttempt"}},
            {"an engine comes",
             [](const Header&) { return EngineCame{0}; },
             {"ok", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "ok",
              "WrongPhase", "ok", "ok"}},
            {"the world ends",
             [](const Header& h) {
               return Release{h, {}, true, "end"};
             },
             {"dismiss 0", "drop", "drop", "drop", "drop", "drop", "keep old", "drop", "dismiss 0",
              "dismiss 0"}},
            {"another world",
             [](const Header& h) {
               return Abort{{"v", h.epoch, h.attempt}, "test"};
             },
             {"WrongWorld", "WrongWorld", "WrongWorld", "WrongWorld", "WrongWorld", "WrongWorld",
              "WrongWorld", "WrongWorld", "WrongWorld", "WrongWorld"}},
            {"another epoch",
             [](const Header& h) { return Permit{To(2, h.epoch + 2)}; },
             {"WrongPhase", "StaleEpoch", "StaleEpoch", "StaleEpoch", "StaleEpoch", "StaleEpoch",
              "StaleEpoch", "StaleEpoch", "StaleAttempt", "StaleAttempt"}},
        });
}

TEST_F(Table, WhenAgentsExchangeTheWords) {
  Check(
      Kind::kRepair,
      {
          {"permit",
           [](const Header& h) { return Permit{h}; },
           {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "tell words", "ok", "ok",
            "WrongPhase", "StaleAttempt", "StaleAttempt"}},
          {"words are out",
           [](const Header&) { return WordsOut{2}; },
           {"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok"}},
          {"the last word",
           [](const Header& h) {
             return Word{h, "target", {2}, "other"};
           },
           {"WrongPhase", "ok", "ok", "ok", "ok", "commit 0", "ok", "ok", "ok", "StaleAttempt"}},
          {"a stranger's word",
           [](const Header& h) {
             return Word{h, "target", {2}, "here"};
           },
           {"WrongPhase", "Unauthenticated", "Unauthenticated", "Unauthenticated",
            "Unauthenticated", "Unauthenticated", "Unauthenticated", "Unauthenticated", "ok",
            "StaleAttempt"}},
          {"a word of nobody",
           [](const Header& h) {
             return Word{h, "target", {3}, "other"};
           },
           {"WrongPhase", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan",
            "BadPlan", "ok", "StaleAttempt"}},
          {"a word for elsewhere",
           [](const Header& h) {
             return Word{h, "x", {2}, "other"};
           },
           {"WrongPhase", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan", "BadPlan",
            "BadPlan", "ok", "StaleAttempt"}},
          {"abort",
           [](const Header& h) {
             return Abort{h, "test"};
           },
           {"ok", "drop", "drop", "drop", "drop", "ask peers", "flipped", "drop", "flipped", "ok"}},
          {"stay",
           [](const Header& h) {
             return Resolve{h, Outcome::kStay, {}, "dead"};
           },
           {"ok", "drop", "drop", "drop", "drop, keep", "drop, keep", "WrongPhase", "drop",
            "WrongPhase", "ok"}},
          {"forward",
           [](const Header& h) {
             return Resolve{h, Outcome::kForward, {}, "dead"};
           },
           {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "commit 0",
            "acted", "WrongPhase", "ok", "WrongPhase"}},
          {"an engine's flip",
           [](const Header& h) {
             return EngineFlip{h, 0, "target"};
           },
           {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
            "ok", "WrongPhase", "StaleAttempt", "StaleAttempt"}},
      });
}

TEST_F(Attempts, APlanIsRefusedByWhatIsWrongWithIt) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const Prepare right = Ask(Kind::kLayout, To(2));
  const auto why = [&](const std::function<void(Prepare*)>& wrong, const std::string& code) {
    Prepare ask = right;
    wrong(&ask);
    const Next next = hands_->Tell(ask);
    EXPECT_EQ(Say(next), code);
    return WhyOf(next);
  };
  EXPECT_EQ(why([](Prepare* p) { p->header.world = "v"; }, "WrongWorld"),
            "this agent serves world 'w', the call is for 'v'");
  EXPECT_EQ(why([](Prepare* p) { p->header.attempt = 1; }, "StaleAttempt"),
            "attempt 1 is over or burned, the highest seen is 1");
  EXPECT_EQ(why([](Prepare* p) { p->header.epoch = 7; }, "StaleEpoch"),
            "the epoch in force is 1, the call says 7");
  EXPECT_EQ(why([](Prepare* p) { p->target_epoch = 3; }, "BadPlan"),
            "target epoch 3 does not follow epoch 1");
  EXPECT_EQ(why([](Prepare* p) { p->kind = Kind::kFirst; }, "BadPlan"),
            "a flip of kind FLIP_KIND_FIRST from epoch 1");
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

TEST_F(Attempts, PartsAreOfTheRanksThatAreConcerned) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const auto why = [&](Kind kind, const std::function<void(Plan*)>& wrong) {
    EXPECT_EQ(Tell(Ask(kind, To(2))), "build");
    Plan plan = PlanFor(kind, 2);
    wrong(&plan);
    const Next next = hands_->Tell(Built{plan});
    EXPECT_EQ(hands_->machine.attempt(), nullptr);
    return Say(next) + ": " + WhyOf(next);
  };
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[0].member = "pod/0/7"; }),
            "BadPlan: part for member pod/0/7, which is not of this agent (a restarted process is "
            "another member)");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->target_ranks[0] = -1; }),
            "BadPlan: part for member pod/0/1, which is not in the target");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[0].rank = 1; }),
            "BadPlan: member pod/0/1 is rank 0, its part says 1");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts[1] = p->parts[0]; }),
            "BadPlan: two parts for member pod/0/1");
  EXPECT_EQ(why(Kind::kLayout, [](Plan* p) { p->parts.pop_back(); }),
            "BadPlan: no part for member pod/1/1");
  EXPECT_EQ(why(Kind::kRepair, [](Plan*) {}),
            "WrongPhase: member pod/0/1 has not stopped; a repair is for ranks that stand still");
  EXPECT_FALSE(hands_->gates[0].stopped);
  EXPECT_EQ(why(Kind::kRepair,
                [](Plan* p) {
                  p->parts.clear();
                  p->target_ranks = {-1, -1};
                }),
            "BadPlan: no part for any rank of this agent");
  EXPECT_TRUE(hands_->gates[0].stopped) << "a fence left it out, and its engine may hang";
}

TEST_F(Attempts, WhoIsInNoWorldCanOnlyBeginOrJoin) {
  EXPECT_EQ(Tell(Ask(Kind::kLayout, To(1, 4))), "StaleEpoch");
  EXPECT_EQ(Tell(Ask(Kind::kRepair, To(1, 4))), "StaleEpoch");
  EXPECT_EQ(Tell(Ask(Kind::kJoin, To(1, 4))), "build");
  Plan plan = PlanFor(Kind::kRepair, 1);
  hands_->gates[0].stopped = hands_->gates[1].stopped = true;
  EXPECT_EQ(WhyOf(hands_->Tell(Built{plan})), "a repair cannot bring member pod/0/1 in");
  plan.kind = Kind::kJoin;
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_TRUE(hands_->machine.attempt()->parts.at(0).joining);
}

TEST_F(Attempts, ARefusalByMemoryOrEnginesBurnsNothing) {
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
  EXPECT_EQ(Tell(Built{PlanFor(Kind::kFirst, 1)}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, {Code::kNoMemory, "too little"}}), "NoMemory");
  ASSERT_EQ(std::get<Ended>(hands_->marks.back()).end, End::kRefused);
  EXPECT_EQ(hands_->machine.highest(), 0u);
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
}

TEST_F(Attempts, AnotherPlanNeedsAnotherNumber) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPrepared, Kind::kFirst, 1));
  Prepare again = Ask(Kind::kFirst, To(1));
  EXPECT_EQ(Tell(again), "ok");
  again.request_hash = "another";
  EXPECT_EQ(WhyOf(hands_->Tell(again)),
            "attempt 1 is prepared with another plan; take a new attempt id");
}

TEST_F(Attempts, AFailureIsToldUntilTheAbort) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kFailed, Kind::kFirst, 1));
  EXPECT_EQ(WhyOf(hands_->Tell(Stage{To(1)})), "the attempt failed, abort it: no source");
  EXPECT_EQ(WhyOf(hands_->Tell(Permit{To(1)})), "Permit of attempt 1 in PHASE_FAILED: no source");
  EXPECT_EQ(Tell(Abort{To(1), "failed"}), "drop");
  EXPECT_EQ(Tell(Dropped{1}), "acted");
  EXPECT_EQ(hands_->machine.last()->error, "no source");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "StaleAttempt") << "burned";
}

TEST_F(Attempts, AnAbortOfWhatIsNotKnownBurnsIt) {
  EXPECT_EQ(Tell(Abort{To(5), "test"}), "ok");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(5))), "StaleAttempt");
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(6))), "build");
}

TEST_F(Attempts, AnEngineThatLeavesBeforeThePermitFailsIt) {
  for (const Phase phase : {Phase::kPrepared, Phase::kStaging, Phase::kStaged}) {
    hands_ = std::make_unique<Hands>(kRanks);
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_NO_FATAL_FAILURE(Reach(phase, Kind::kLayout, 2));
    EXPECT_EQ(Tell(EngineGone{1}), "ok");
    EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
    EXPECT_EQ(hands_->machine.attempt()->error, "the engine of device 1 left");
    EXPECT_TRUE(hands_->gates[1].stopped);
    EXPECT_EQ(Tell(Staged{2, OkStatus()}), "ok") << "too late";
    EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFailed);
  }
}

TEST_F(Attempts, AnEngineThatLeavesLaterOrIsNotNeededFailsNothing) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaging, Kind::kFirst, 1));
  EXPECT_EQ(Tell(EngineGone{0}), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kStaging) << "a first layout needs none";
  EXPECT_FALSE(hands_->gates[0].stopped) << "it is in no layout";
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(EngineGone{0}), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPermitted);
}

TEST_F(Attempts, APermitIsForAllGatesOrNone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kLayout, 2));
  hands_->gates[1].state = GateState::kFlipped;
  EXPECT_EQ(Tell(Permit{To(2)}), "WrongPhase");
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kStaged);
}

TEST_F(Attempts, AnEngineFlipsWithItsWordWhileItSteps) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  const EngineFlip flip{To(2), 0, "target"};
  EXPECT_EQ(WhyOf(hands_->Tell(flip)), "an engine's flip without its word");
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = true;
  EXPECT_EQ(WhyOf(hands_->Tell(flip)), "an engine's flip after it gave the step up");
  hands_->gates[0].stopped = false;
  EXPECT_EQ(Tell(flip), "commit 0");
  EXPECT_EQ(Tell(flip), "wait") << "its memory is on the way";
  EXPECT_EQ(Tell(Committed{2, 0, By::kEngine, OkStatus(), true}), "acted");
  EXPECT_EQ(Tell(flip), "ok");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kPermitted) << "the other has not";
  EXPECT_EQ(hands_->machine.ranks()[0].epoch, 2u);
  EXPECT_EQ(hands_->machine.epoch(), 1u) << "what is in force for all";
  FlipByEngine(To(2), 1);
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  EXPECT_EQ(hands_->machine.epoch(), 2u);
  EXPECT_EQ(Tell(EngineFlip{To(2), 5, "target"}), "WrongPhase") << "it has no part";
}

TEST_F(Attempts, ACommitThatFailsLeavesTheFlipToTryAgain) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  EXPECT_EQ(Tell(EngineFlip{To(2), 0, "target"}), "commit 0");
  hands_->changed = false;
  EXPECT_EQ(Tell(Committed{2, 0, By::kEngine, {Code::kInternal, "no"}, true}), "Internal");
  EXPECT_TRUE(hands_->changed) << "who waited for it looks again";
  EXPECT_FALSE(hands_->machine.attempt()->any_flipped());
  EXPECT_EQ(Tell(EngineFlip{To(2), 0, "target"}), "commit 0");
}

TEST_F(Attempts, WhileMemoryCommitsTheDriverWaits) {
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
  EXPECT_EQ(Tell(Committed{2, 0, By::kEngine, OkStatus(), true}), "acted");
  EXPECT_EQ(Tell(Abort{h, "test"}), "flipped");
}

TEST_F(Attempts, APermitIsTakenBackFromAllOrNone) {
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

TEST_F(Attempts, ALatchedWordIsResolvedByAFenceOnceItsEngineIsGone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(1, GateEvent::kWord));
  EXPECT_EQ(Tell(Abort{To(2), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {0}, false}), "wait") << "1 lives";
  const Next late = hands_->Tell(PeersSaid{2, attempt::Say::kBurned, {}, true});
  EXPECT_EQ(Say(late), "Unavailable");
  EXPECT_EQ(WhyOf(late),
            "attempt 2: a word was given and its outcome is not known after 100 ms; ask again");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kBurned, {1}, true}), "drop");
  EXPECT_EQ(hands_->gates[1].state, GateState::kIdle);
}

TEST_F(Attempts, WordsThatOthersHaveAreTakenBackByNobody) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Abort{To(1), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kNothing, {}, false}), "wait");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kBurned, {}, false}), "drop");
}

TEST_F(Attempts, WhoMissedAWordFollowsOneThatFlipped) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Abort{To(1), "test"}), "ask peers");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, false}), "commit 0");
  EXPECT_EQ(Tell(Committed{1, 0, By::kPeer, {Code::kInternal, "no"}, false}), "wait");
  EXPECT_EQ(hands_->machine.attempt()->error, "no");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, true}), "commit 0");
  EXPECT_EQ(Tell(Committed{1, 0, By::kPeer, {Code::kInternal, "no"}, false}), "Unavailable");
  EXPECT_EQ(Tell(PeersSaid{1, attempt::Say::kFlipped, {}, false}), "commit 0");
  EXPECT_EQ(Tell(Committed{1, 0, By::kPeer, OkStatus(), false}), "commit 1");
  EXPECT_EQ(Tell(Committed{1, 1, By::kPeer, OkStatus(), false}), "flipped");
  EXPECT_EQ(hands_->machine.attempt()->error, "");
}

TEST_F(Attempts, AWorldOfOneAgentHasItsWordsAtOnce) {
  EXPECT_EQ(Tell(Ask(Kind::kFirst, To(1))), "build");
  Plan plan = PlanFor(Kind::kFirst, 1);
  plan.pods.pop_back();
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, OkStatus()}), "acted");
  EXPECT_EQ(Tell(Stage{To(1)}), "start staging");
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(WordsOut{1}), "commit 0");
  EXPECT_EQ(Tell(WordsOut{1}), "ok") << "they are on their way";
}

TEST_F(Attempts, AWordThatComesBeforeThePermitCounts) {
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kFirst, 1));
  EXPECT_EQ(Tell(Word{To(1), "target", {2}, "other"}), "ok");
  EXPECT_EQ(Tell(Permit{To(1)}), "tell words");
  EXPECT_EQ(Tell(WordsOut{1}), "commit 0");
}

TEST_F(Attempts, WhoIsHeldFlipsByNoWord) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kRepair, 2));
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kHold, {}, ""}), "ok");
  EXPECT_EQ(Tell(Word{To(2), "target", {2}, "other"}), "ok");
  EXPECT_EQ(Tell(PeersSaid{2, attempt::Say::kFlipped, {}, false}), "wait");
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kForward, {}, "dead"}), "commit 0");
}

TEST_F(Attempts, InARepairWhoHasAnEngineGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kRepair, 2));
  EXPECT_EQ(Tell(Word{To(2), "target", {2}, "other"}), "commit 0");
  EXPECT_EQ(Tell(EngineGone{1}), "ok");
  EXPECT_EQ(Tell(Committed{2, 0, By::kWords, OkStatus(), true}), "commit 1");
  EXPECT_EQ(Tell(EngineGone{1}), "ok");
  EXPECT_EQ(Tell(Committed{2, 1, By::kWords, OkStatus(), true}), "ok");
  EXPECT_FALSE(hands_->gates[0].stopped);
  EXPECT_TRUE(hands_->gates[1].stopped) << "it went while the memory was on its way";
}

TEST_F(Attempts, WhomARepairLeavesOutIsReleasedWhenItRetires) {
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
  EXPECT_EQ(Tell(Committed{2, 0, By::kWords, OkStatus(), true}), "ok");
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

TEST_F(Attempts, AFenceWaitsUntilAllStandStill) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = true;
  Resolve stay{To(2), Outcome::kStay, {}, "dead"};
  EXPECT_EQ(WhyOf(hands_->Tell(stay)),
            "member pod/1/1 has not stopped: the outcome is not known yet");
  stay.lost = {"pod/1/1"};
  EXPECT_EQ(Tell(stay), "drop, keep") << "the fence left it out";
  EXPECT_EQ(hands_->gates[0].state, GateState::kIdle);
  EXPECT_TRUE(hands_->gates[1].stopped);
  EXPECT_EQ(Tell(Dropped{2}), "acted");
  EXPECT_EQ(hands_->machine.last()->error, "a fence: dead");
  EXPECT_EQ(Tell(stay), "ok");
  EXPECT_EQ(WhyOf(hands_->Tell(Resolve{To(2), Outcome::kForward, {}, "dead"})),
            "attempt 2 is over here: it never flipped and cannot any more");
}

TEST_F(Attempts, WhoHasVerifiedGoesForwardWhetherItKeptItsWordOrNot) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kPermitted, Kind::kLayout, 2));
  ASSERT_TRUE(hands_->Move(0, GateEvent::kWord));
  hands_->gates[0].stopped = hands_->gates[1].stopped = true;
  const Resolve forward{To(2), Outcome::kForward, {}, "dead"};
  EXPECT_EQ(Tell(forward), "commit 0");
  EXPECT_EQ(Tell(Committed{2, 0, By::kForward, {Code::kInternal, "no"}, true}), "Internal");
  EXPECT_EQ(Tell(forward), "commit 0");
  EXPECT_EQ(Tell(Committed{2, 0, By::kForward, OkStatus(), true}), "commit 1");
  EXPECT_EQ(Tell(Committed{2, 1, By::kForward, OkStatus(), true}), "acted");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  EXPECT_TRUE(hands_->gates[0].stopped) << "a repair follows";
  EXPECT_EQ(Tell(Resolve{To(2), Outcome::kStay, {}, "dead"}), "WrongPhase");
  EXPECT_EQ(Tell(forward), "acted");
}

TEST_F(Attempts, AJoinerThatWasNotToldIsPermittedByTheFence) {
  EXPECT_EQ(Tell(Ask(Kind::kJoin, To(1, 4))), "build");
  Plan plan = PlanFor(Kind::kJoin, 1);
  plan.from_epoch = 4;
  plan.target_epoch = 5;
  EXPECT_EQ(Tell(Built{plan}), "reserve");
  EXPECT_EQ(Tell(Reserved{1, OkStatus()}), "acted");
  const Resolve forward{To(1, 4), Outcome::kForward, {}, "dead"};
  EXPECT_EQ(WhyOf(hands_->Tell(forward)), "attempt 1 cannot go forward from PHASE_PREPARED");
  EXPECT_EQ(Tell(Stage{To(1, 4)}), "start staging");
  EXPECT_EQ(Tell(Staged{1, OkStatus()}), "ok");
  EXPECT_EQ(Tell(forward), "commit 0");
  EXPECT_TRUE(hands_->gates[0].stopped) << "as those that it joins";
  EXPECT_FALSE(hands_->gates[1].stopped);
  EXPECT_EQ(Tell(Committed{1, 0, By::kForward, OkStatus(), true}), "commit 1");
  EXPECT_EQ(Tell(Committed{1, 1, By::kForward, OkStatus(), true}), "acted");
  EXPECT_EQ(hands_->machine.epoch(), 5u);
}

TEST_F(Attempts, ALeaverIsInNoLayoutOnceItRetires) {
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
            "rank 0 has not finished a step of epoch 2; its old places are still sources for "
            "repair, ask again");
  hands_->gates[0].steps = 1;
  EXPECT_EQ(Tell(Retire{h}), "return old") << "a leaver steps no more";
  EXPECT_EQ(Tell(Returned{2, {Code::kInternal, "no"}}), "Internal");
  EXPECT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped) << "to be tried again";
  EXPECT_EQ(Tell(Returned{2, OkStatus()}), "acted");
  EXPECT_EQ(hands_->machine.ranks()[1].epoch, 0u);
  EXPECT_EQ(hands_->gates[1].state, GateState::kIdle);
  EXPECT_EQ(Tell(Retire{h}), "ok");
}

TEST_F(Attempts, ARepairAtOnceKeepsWhatTheFlipWouldGiveBack) {
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

TEST_F(Attempts, AReleaseIsForALaterEpochAndEndsWhatTheMemberHasAPartIn) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(WhyOf(hands_->Tell(Release{To(0, 1), {"pod/1/1"}, false, "gone"})),
            "member pod/1/1 is rank 1 of epoch 1; only a later epoch can go on without it");
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

TEST_F(Attempts, TheEndOfAWorldKeepsNothing) {
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

TEST_F(Attempts, AnEngineThatComesToALayoutStandsStill) {
  EXPECT_EQ(Tell(EngineCame{0}), "ok");
  EXPECT_FALSE(hands_->gates[0].stopped);
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(Tell(EngineCame{0}), "ok");
  EXPECT_TRUE(hands_->gates[0].stopped);
}

TEST_F(Attempts, ARankThatOutlivedItsAgentBringsItsPlaceAndBurnsWhatWasBegun) {
  EXPECT_EQ(Tell(Resumed{1, "pod/1/0", 4, 9, 7}), "ok");
  EXPECT_EQ(hands_->machine.epoch(), 9u);
  EXPECT_EQ(hands_->machine.ranks()[1].member, "pod/1/0");
  EXPECT_EQ(hands_->machine.highest(), 7u);
  EXPECT_EQ(Tell(Resumed{0, "pod/0/0", -1, 3, 2}), "ok");
  EXPECT_EQ(hands_->machine.ranks()[0].epoch, 0u) << "it was in none";
  EXPECT_EQ(hands_->machine.highest(), 7u);
}

TEST_F(Attempts, WhatOthersAreToldOfIt) {
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

TEST_F(Attempts, PullsBelongToTheAttemptUnderWay) {
  const Machine& machine = hands_->machine;
  EXPECT_EQ(machine.CheckPull({"v", 0, 1}).message(), "this agent serves world 'w'");
  EXPECT_EQ(machine.CheckPull(To(1)).code(), Code::kNotHeld);
  ASSERT_NO_FATAL_FAILURE(Begin());
  EXPECT_EQ(machine.CheckPull(To(1)).code(), Code::kStaleAttempt);
  ASSERT_NO_FATAL_FAILURE(Reach(Phase::kStaged, Kind::kLayout, 2));
  EXPECT_TRUE(machine.CheckPull(To(2)).ok());
  EXPECT_EQ(machine.CheckPull(To(3)).code(), Code::kNotHeld);
  EXPECT_EQ(machine.CheckKvPull(To(2), 0).message(), "a KV pull in PHASE_STAGED");
  EXPECT_EQ(Tell(Permit{To(2)}), "acted");
  EXPECT_TRUE(machine.CheckKvPull(To(2), 0).ok());
  EXPECT_EQ(machine.CheckKvPull(To(2), 5).code(), Code::kWrongPhase);
}

}  // namespace
}  // namespace tangram::attempt::testing
