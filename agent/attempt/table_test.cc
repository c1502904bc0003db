#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/attempt/testing/attempts.h"

namespace tangram::attempt::testing {
namespace {

// States of attempt 2, whose flip is by engines or is a repair. `over`: retired or aborted.
struct Moment {
  const char* name;
  std::optional<Phase> phase;  // none: the attempt is unknown
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
    // In the order of kMoments.
    std::array<const char*, std::size(kMoments)> want;
  };
  void Check(Kind kind, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      for (size_t m = 0; m < std::size(kMoments); ++m) {
        hands_ = std::make_unique<Hands>(kRanks);
        ASSERT_NO_FATAL_FAILURE(At(kMoments[m], kind)) << kMoments[m].name;
        const std::string before = State();
        const Later next = hands_->Tell(row.event(To(2, from_)));
        EXPECT_EQ(Show(next), row.want[m]) << row.name << ", " << kMoments[m].name;
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

TEST_F(Table, RepliesWhenEnginesVote) {
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

TEST_F(Table, RepliesWhenAgentsExchangeVotes) {
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
           {"WrongPhase", "ok", "ok", "ok", "ok", "commit 0 1", "ok", "ok", "ok", "StaleAttempt"}},
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
           {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "commit 0 1",
            "acted", "WrongPhase", "ok", "WrongPhase"}},
          {"an engine's flip",
           [](const Header& h) {
             return EngineFlip{h, 0, "target"};
           },
           {"WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase", "WrongPhase",
            "ok", "WrongPhase", "StaleAttempt", "StaleAttempt"}},
      });
}

}  // namespace
}  // namespace tangram::attempt::testing
