// Pulls of KV in a flip and ahead of one: the agent copies, the engine waits and sends heartbeats.
#include "agent/engine/ahead/copies.h"

#include <gtest/gtest.h>

#include "agent/base/limits.h"
#include "agent/engine/abi/testing/fakes.h"

namespace tangram::engine {
namespace {

constexpr auto kSlices = static_cast<int>(limits::kKvPull / limits::kSlice);
constexpr auto kSlice = static_cast<int>(limits::kSlice.count());

std::vector<tg_kv_move> Moves(size_t count, uint32_t length) {
  std::vector<tg_kv_move> out;
  for (size_t i = 0; i < count; ++i) out.push_back({1, i * length, i * length, length});
  return out;
}

class CopiesTest : public ::testing::Test {
 protected:
  FakeWorld world_;
  Waits waits_;
  Copies copies_{&world_};
};

// The others wait for this rank in the flip's barrier, and must receive heartbeats.
TEST_F(CopiesTest, SendsHeartbeatPerSliceOfPullInFlip) {
  world_.waits = 100 * kSlice;
  const auto bytes = copies_.Pull(Moves(3, 1000), waits_);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(*bytes, 3000u);
  EXPECT_GE(waits_.heartbeats, 100);
}

TEST_F(CopiesTest, SplitsPullInFlip) {
  const auto moves = Moves(5, Copies::kPullAtOnce / 2);
  const auto bytes = copies_.Pull(moves, waits_);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(*bytes, 5 * Copies::kPullAtOnce / 2);
  EXPECT_EQ(world_.pulls, 3);
  EXPECT_EQ(world_.pulled.size(), moves.size());
  EXPECT_GE(waits_.heartbeats, 3);
}

TEST_F(CopiesTest, ReturnsAgentErrorWhenPullFails) {
  world_.fails = true;
  EXPECT_EQ(copies_.Pull(Moves(1, 8), waits_).status().message(), "the source is gone");
  world_.fails = false;
  EXPECT_TRUE(copies_.Pull(Moves(1, 8), waits_).ok()) << "the next flip tries again";
}

// An unresponsive agent must not block a world: heartbeats end, and the flip is abandoned. Memory
// that the agent writes to is not used before it reports the end.
TEST_F(CopiesTest, AbandonsPullWhenAgentIsUnresponsive) {
  world_.waits = 2 * kSlices * kSlice;
  EXPECT_EQ(copies_.Pull(Moves(1, 8), waits_).status().code(), Code::kUnavailable);
  EXPECT_EQ(waits_.heartbeats, kSlices);
  EXPECT_TRUE(copies_.under_way());
  EXPECT_FALSE(copies_.MayBegin());
  EXPECT_EQ(copies_.Pull(Moves(1, 8), waits_).status().code(), Code::kUnavailable);
  EXPECT_EQ(world_.pulls, 1) << "one at a time";
  world_.waits = 0;
  EXPECT_EQ(copies_.TakeUp(nullptr), std::nullopt) << "nothing that was ahead";
  EXPECT_FALSE(copies_.under_way());
  EXPECT_TRUE(copies_.Pull(Moves(1, 8), waits_).ok());
}

// The others abandoned the flip for another reason: a rank that continues to pull would be taken
// for an unresponsive one.
TEST_F(CopiesTest, AbandonsPullWhenPeersAbandonFlip) {
  world_.waits = kSlices * kSlice;
  waits_.until = 3;
  EXPECT_EQ(copies_.Pull(Moves(1, 8), waits_).status().code(), Code::kUnavailable);
  EXPECT_EQ(waits_.heartbeats, 4);
  EXPECT_TRUE(copies_.under_way());
}

TEST_F(CopiesTest, LimitsWaitOfFlipForCopyAhead) {
  ASSERT_TRUE(copies_.Begin(Moves(1, 8)));
  world_.waits = 2 * kSlices * kSlice;
  EXPECT_EQ(copies_.TakeUp(&waits_), std::nullopt);
  EXPECT_EQ(waits_.heartbeats, kSlices);
  EXPECT_TRUE(copies_.under_way());
  world_.waits = 0;
  EXPECT_EQ(copies_.TakeUp(&waits_), std::optional(true));
}

}  // namespace
}  // namespace tangram::engine
