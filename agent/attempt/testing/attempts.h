// Fixture that brings an agent's attempt to any phase by regular events. For tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/attempt/testing/hands.h"

namespace tangram::attempt::testing {

inline const char* NameOf(Code code) {
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

inline std::string Show(const Later& next) {
  struct {
    std::string operator()(const Answer& a) const {
      if (!a.status.ok()) return NameOf(a.status.code());
      return a.flipped ? "flipped" : a.acted ? "acted" : "ok";
    }
    std::string operator()(const Build&) const { return "build"; }
    std::string operator()(const KeepOld&) const { return "keep old"; }
    std::string operator()(const Reserve&) const { return "reserve"; }
    std::string operator()(const StartStaging&) const { return "start staging"; }
    std::string operator()(const TellWords&) const { return "tell words"; }
    std::string operator()(const Commit& c) const {
      std::string out = "commit";
      for (const uint32_t device : c.devices) out += " " + std::to_string(device);
      return out;
    }
    std::string operator()(const AskPeers&) const { return "ask peers"; }
    std::string operator()(const Drop& d) const { return d.keep ? "drop, keep" : "drop"; }
    std::string operator()(const ReturnOld&) const { return "return old"; }
    std::string operator()(const Dismiss& d) const { return "dismiss " + std::to_string(d.device); }
    std::string operator()(const Empty& e) const { return "empty as " + e.member; }
    std::string operator()(const Wait&) const { return "wait"; }
  } say;
  return std::visit(say, next);
}

inline std::string WhyOf(const Later& next) { return std::get<Answer>(next).status.message(); }

inline constexpr uint32_t kRanks = 2;

// An agent with two ranks; the world has a third one, in pod "other".
class Attempts : public ::testing::Test {
 protected:
  static Header To(uint64_t attempt, uint64_t epoch) { return {"w", epoch, attempt}; }
  Header To(uint64_t attempt) const { return To(attempt, hands_->machine.epoch()); }

  static Prepare Ask(Kind kind, const Header& header) {
    return {header, kind, header.epoch + 1, "request", OkStatus()};
  }

  // Both ranks get the same places, as ranks 0 and 1 of three.
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

  std::string Tell(const Event& event) { return Show(hands_->Tell(event)); }

  // The memory of the first `done` devices commits; all have engines.
  static Committed Did(uint64_t attempt, std::vector<uint32_t> devices, By by, size_t done = 9) {
    const std::set<uint32_t> attached(devices.begin(), devices.end());
    const bool all = done >= devices.size();
    return {attempt,
            devices,
            all ? devices.size() : done,
            by,
            all ? OkStatus() : Status{Code::kInternal, "no"},
            attached};
  }

  // From no attempt to `phase`.
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
      ASSERT_EQ(Tell(Word{header, "target", {2}, "other"}), "commit 0 1");
      ASSERT_EQ(Tell(Did(attempt, {0, 1}, By::kWords)), "ok");
    } else {
      for (uint32_t device = 0; device < kRanks; ++device) FlipByEngine(header, device);
    }
    ASSERT_EQ(hands_->machine.attempt()->phase, Phase::kFlipped);
  }

  void FlipByEngine(const Header& header, uint32_t device) {
    ASSERT_TRUE(hands_->Move(device, GateEvent::kWord));
    ASSERT_EQ(Tell(EngineFlip{header, device, "target"}), "commit " + std::to_string(device));
    ASSERT_EQ(Tell(Did(header.attempt, {device}, By::kEngine)), "acted");
  }

  // Flips and retires the first layout: epoch 1, attempt 1.
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

}  // namespace tangram::attempt::testing
