// A rank with a dead peer computes no steps until its agent reports the outcome. One thread, and a
// clock that moves only while the rank waits.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/base/testing/fake_time.h"
#include "agent/engine/turn/testing/scripted.h"

namespace tangram::engine::testing {
namespace {

using std::chrono::seconds;
using tangram::testing::FakeTime;

class TurnAfterADeath : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<PeerAddress> peers{{"a", endpoints_[0], ""}, {"b", endpoints_[1], ""}};
    a_->Want(peers);
    b_->Want(peers);
    while (!a_->Connected(names_) || !b_->Connected(names_)) {
      a_->Progress(1);
      b_->Progress(1);
    }
    world_.events = {Flipped(now_)};
    b_->HangUpAll();
    ASSERT_TRUE(turn_.Once().ok());
    ASSERT_TRUE(turn_.stopped());
  }
  // The time that passes meanwhile, on this clock.
  template <typename Until>
  FakeTime::Duration OnceUntil(const Until& until) {
    const FakeTime::Duration begun = time_.Elapsed();
    while (!until() && time_.Elapsed() - begun < std::chrono::hours(1)) {
      const Status status = turn_.Once();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return time_.Elapsed() - begun;
  }

  static constexpr Patience::Bounds kBounds{.least = seconds(1), .most = seconds(10)};
  FakeTime time_;
  const std::vector<std::string> names_{"a", "b"};
  const std::unique_ptr<Mesh> a_ = Listening("a", time_), b_ = Listening("b", time_);
  const std::vector<std::string> endpoints_{EndpointOf(*a_), EndpointOf(*b_)};
  const TestMaps now_{1, 0, names_, endpoints_}, next_{2, 0, names_, endpoints_},
      alone_{2, 0, {"a"}, {endpoints_[0]}};
  ScriptedWorld world_{"a"};
  ScriptedBackend backend_;
  Nowhere nowhere_;
  Inbox inbox_;
  Turn turn_{{.patience = kBounds}, &world_, a_.get(), &inbox_, &nowhere_, &backend_, time_};
};

TEST_F(TurnAfterADeath, AbandonsStepAndReportsMissingRank) {
  EXPECT_TRUE(turn_.stopped());
  EXPECT_TRUE(world_.stopped());
  EXPECT_FALSE(world_.kept_word) << "no flip was under way";
  ASSERT_EQ(world_.missed.size(), 1u);
  EXPECT_EQ(world_.missed[0].rank, 1u);
  EXPECT_EQ(world_.missed[0].cause, static_cast<uint32_t>(TG_GONE));
  EXPECT_EQ(world_.missed[0].doing, static_cast<uint32_t>(TG_IN_VOTE));
  EXPECT_EQ(world_.unreachable, std::vector<uint32_t>{1}) << "this rank hung up, too";
  EXPECT_EQ(backend_.steps, 0u);
}

// A live rank connects again and sends heartbeats, and is reachable while it does.
TEST_F(TurnAfterADeath, ReachesPeerSendingHeartbeats) {
  OnceUntil([&] {
    b_->Progress(0);
    return world_.unreachable.empty();
  });
  ASSERT_TRUE(world_.unreachable.empty());
  const FakeTime::Duration begun = time_.Elapsed();
  FakeTime::Duration due = begun;
  OnceUntil([&] {
    if (time_.Elapsed() >= due) {
      b_->BeatStill(1);
      b_->Progress(0);
      due += kBounds.least;
    }
    return !world_.unreachable.empty() || time_.Elapsed() - begun > seconds(10);
  });
  EXPECT_TRUE(world_.unreachable.empty());
}

// Its sockets stay open, so only missing heartbeats reveal that it is unresponsive. No rank
// computes, so the timeout is twice the minimum.
TEST_F(TurnAfterADeath, DisconnectsUnresponsivePeer) {
  OnceUntil([&] {
    b_->Progress(0);
    return world_.unreachable.empty();
  });
  ASSERT_TRUE(world_.unreachable.empty());
  const FakeTime::Duration silent = OnceUntil([&] { return !world_.unreachable.empty(); });
  EXPECT_EQ(world_.unreachable, std::vector<uint32_t>{1});
  EXPECT_GE(silent, 2 * kBounds.least - seconds(1) / 10);
  EXPECT_LE(silent, 3 * kBounds.least);
}

TEST_F(TurnAfterADeath, ContinuesAfterRepair) {
  world_.events = {Prepare(alone_, true)};
  ASSERT_TRUE(turn_.Once().ok());
  EXPECT_EQ(world_.answers, std::vector<std::string>{""}) << "it has no peer to connect to";
  EXPECT_TRUE(turn_.stopped());
  world_.events = {Flipped(alone_, true)};
  ASSERT_TRUE(turn_.Once().ok());
  EXPECT_FALSE(turn_.stopped());
  EXPECT_EQ(turn_.epoch(), 2u);
  EXPECT_EQ(backend_.entries, (std::vector{Entry::kEmpty, Entry::kRepaired}));
  backend_.rows = 1;
  ASSERT_TRUE(turn_.Once().ok());
  EXPECT_EQ(backend_.steps, 1u) << "alone";
}

TEST_F(TurnAfterADeath, StaysStoppedWhenRepairAborts) {
  tg_event aborted = Prepare(alone_, true);
  aborted.kind = TG_EVENT_ABORT;
  world_.events = {Prepare(alone_, true), aborted};
  ASSERT_TRUE(turn_.Once().ok());
  EXPECT_TRUE(turn_.stopped());
  EXPECT_EQ(turn_.epoch(), 1u);
  EXPECT_EQ(backend_.entries, std::vector{Entry::kEmpty});
}

// The agents flip only if every rank had its KV. This rank had not, so this is an error.
TEST_F(TurnAfterADeath, FailsWhenOthersFlippedWithoutItsKv) {
  world_.events = {Flipped(next_)};
  const Status status = turn_.Once();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("but this engine has no KV for it"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace tangram::engine::testing
