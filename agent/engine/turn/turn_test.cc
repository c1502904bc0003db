// A rank's step loop in a world of two, with a scripted agent and engine. The other rank is a mesh
// that sends what a step loop would.
#include "agent/engine/turn/turn.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "agent/base/testing/hang.h"
#include "agent/engine/turn/testing/scripted.h"

namespace tangram::engine::testing {
namespace {

using tangram::testing::kHang;

class TurnTest : public ::testing::Test {
 protected:
  TurnTest() {
    const std::vector<PeerAddress> peers{{"a", endpoints_[0], ""}, {"b", endpoints_[1], ""}};
    a_->Want(peers);
    b_->Want(peers);
    EXPECT_TRUE(tangram::testing::Eventually([&] {
      a_->Progress(0);
      b_->Progress(0);
      return a_->Connected(names_) && b_->Connected(names_);
    }));
    world_.events = {Flipped(now_), Prepare(target_)};
  }
  // Steps until the flip has ended, in a separate thread.
  std::future<Status> Flips() {
    return std::async(std::launch::async, [this] {
      const auto end = std::chrono::steady_clock::now() + kHang;
      while (turn_.flips() == 0 && turn_.declined() == 0 && !turn_.stopped()) {
        TANGRAM_RETURN_IF_ERROR(turn_.Once());
        if (std::chrono::steady_clock::now() > end) return Status{Code::kInternal, "it hangs"};
      }
      return OkStatus();
    });
  }
  // b takes part in steps until all votes are for the flip, and in the flip's manifest.
  void FollowUntilThePull() {
    for (bool go = false; !go; ++step_) {
      Control mine;
      mine.word = {2, 7};
      std::vector<Bytes> all;
      const Status said = comm_.Gather(step_, kControlSequence, mine.Encode(), &all);
      ASSERT_TRUE(said.ok()) << said.message();
      go = Control::Decode(all[0])->word.epoch == 2;
    }
    --step_;
    std::vector<Bytes> all;
    const Status said = comm_.Gather(step_, kManifestSequence, {1}, &all);
    ASSERT_TRUE(said.ok()) << said.message();
  }

  static constexpr Patience::Bounds kPatient{.least = kHang, .most = kHang};
  const std::vector<std::string> names_{"a", "b"};
  std::unique_ptr<Mesh> a_ = Listening("a"), b_ = Listening("b");
  const std::vector<std::string> endpoints_{EndpointOf(*a_), EndpointOf(*b_)};
  TestMaps now_{1, 0, names_, endpoints_}, target_{2, 0, names_, endpoints_, true};
  ScriptedWorld world_{"a"};
  ScriptedBackend backend_;
  Nowhere nowhere_;
  Inbox inbox_;
  Turn turn_{{.patience = kPatient, .kv_ahead = std::chrono::milliseconds(-1)},
             &world_,
             a_.get(),
             &inbox_,
             &nowhere_,
             &backend_};
  Patience patience_{kPatient};
  Communicator comm_{b_.get(), 1, 1, names_, &patience_};
  uint64_t step_ = 0;
};

// Ranks that abandoned the flip are stopped and disconnect. A rank that continued to pull KV would
// answer none of them and be taken for an unresponsive one.
TEST_F(TurnTest, EndsPullWhenPeerAbandonsFlip) {
  std::promise<void> pulls;
  Status seen;
  backend_.bring = [&](Between& between) -> Result<uint64_t> {
    pulls.set_value();
    const auto end = std::chrono::steady_clock::now() + kHang;
    while ((seen = between.Lives()).ok() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return seen;
  };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  pulls.get_future().wait();
  b_.reset();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(seen.code(), Code::kUnavailable) << seen.message();
  EXPECT_TRUE(turn_.stopped());
  EXPECT_EQ(turn_.declined(), 0u) << "what is written to still must not be used";
  ASSERT_EQ(world_.missed.size(), 1u);
  EXPECT_EQ(world_.missed[0].rank, 1u);
}

// During its pull, the others receive heartbeats.
TEST_F(TurnTest, SendsHeartbeatsDuringPull) {
  std::atomic<bool> heard{false};
  backend_.bring = [&](Between& between) -> Result<uint64_t> {
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (!heard && std::chrono::steady_clock::now() < end) {
      TANGRAM_RETURN_IF_ERROR(between.Lives());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return uint64_t{8};
  };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  const uint64_t before = b_->Moved("a");
  EXPECT_TRUE(tangram::testing::Eventually([&] {
    b_->Progress(1);
    return b_->Moved("a") > before;
  }));
  heard = true;
  ByteWriter brought;
  brought.PutString("");
  std::vector<Bytes> all;
  const Status told = comm_.Gather(step_, kPulledSequence, brought.Take(), &all);
  EXPECT_TRUE(told.ok()) << told.message();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(turn_.epoch(), 2u);
  EXPECT_EQ(backend_.entries, (std::vector{Entry::kEmpty, Entry::kCarried}));
}

// The first manifests are not enough: all send whole ones, and flip.
TEST_F(TurnTest, RequestsWholeManifestsWhenPlanNeedsThem) {
  backend_.takes_the_whole = true;
  backend_.bring = [](Between&) { return Result<uint64_t>(uint64_t{8}); };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  std::vector<Bytes> all;
  Status told = comm_.Gather(step_, kWholeSequence, {2}, &all);
  ASSERT_TRUE(told.ok()) << told.message();
  ByteWriter brought;
  brought.PutString("");
  told = comm_.Gather(step_, kPulledSequence, brought.Take(), &all);
  ASSERT_TRUE(told.ok()) << told.message();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(turn_.epoch(), 2u);
  EXPECT_EQ(backend_.planned, (std::vector<std::vector<Bytes>>{{{1}, {1}}, {{2}, {2}}}));
}

// All ranks have their KV, as far as this rank knows, and then a peer dies: some may have flipped.
// The agents report the outcome.
TEST_F(TurnTest, FollowsFlipOfAgentsWhenPeerDiesInIt) {
  std::promise<void> brings;
  backend_.bring = [&](Between&) {
    brings.set_value();
    return Result<uint64_t>(uint64_t{8});
  };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  brings.get_future().wait();
  b_.reset();
  const Status status = flips.get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(turn_.stopped());
  EXPECT_TRUE(world_.kept_word);
  world_.events = {Flipped(target_)};
  const Status followed = turn_.Once();
  EXPECT_TRUE(followed.ok()) << followed.message();
  EXPECT_EQ(turn_.epoch(), 2u);
  EXPECT_EQ(backend_.entries, (std::vector{Entry::kEmpty, Entry::kCarried}));
}

// A pull that failed, and has ended: all learn of it and stay.
TEST_F(TurnTest, DeclinesFlipWhenPullFails) {
  backend_.bring = [](Between&) { return Result<uint64_t>(Status{Code::kEngine, "no source"}); };
  auto flips = Flips();
  ASSERT_NO_FATAL_FAILURE(FollowUntilThePull());
  ByteWriter brought;
  brought.PutString("");
  std::vector<Bytes> all;
  EXPECT_TRUE(comm_.Gather(step_, kPulledSequence, brought.Take(), &all).ok());
  b_.reset();
  (void)flips.get();
  EXPECT_NE(world_.declined.find("no source"), std::string::npos) << world_.declined;
  EXPECT_EQ(turn_.epoch(), 1u);
}

}  // namespace
}  // namespace tangram::engine::testing
