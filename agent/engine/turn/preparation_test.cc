#include "agent/engine/turn/preparation.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/base/testing/fake_time.h"
#include "agent/base/testing/hang.h"
#include "agent/engine/turn/testing/scripted.h"

namespace tangram::engine::testing {
namespace {

using std::chrono::seconds;
using Clock = Preparation::Clock;

constexpr Patience::Bounds kPatient{.least = tangram::testing::kHang,
                                    .most = tangram::testing::kHang};
constexpr Preparation::Limits kLimits{.connect = seconds(30), .most_paused = seconds(10)};
constexpr Clock::time_point kStart{};

class PreparationTest : public ::testing::Test {
 protected:
  Result<Preparation> Begin(const tg_event& event) {
    return Preparation::Begin(event, world_.model(), a_.get(), kLimits, &patience_, kStart);
  }
  void Connect() {
    const std::vector<PeerAddress> peers{{"a", EndpointOf(*a_), ""}};
    b_->Want(peers);
    EXPECT_TRUE(tangram::testing::Eventually([&] {
      a_->Progress(0);
      b_->Progress(0);
      return a_->Connected(names_);
    }));
  }

  const std::vector<std::string> names_{"a", "b"};
  std::unique_ptr<Mesh> a_ = Listening("a"), b_ = Listening("b");
  TestMaps target_{2, 0, names_, {EndpointOf(*a_), EndpointOf(*b_)}};
  ScriptedWorld world_{"a"};
  Patience patience_{kPatient};
};

TEST_F(PreparationTest, CompletesWhenAllPeersAreConnected) {
  auto preparation = Begin(Prepare(target_));
  ASSERT_TRUE(preparation.ok()) << preparation.status().message();
  EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart).ok());
  EXPECT_FALSE(preparation->answered());
  EXPECT_TRUE(world_.answers.empty());
  Connect();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart + seconds(60)).ok());
    EXPECT_EQ(world_.answers, std::vector<std::string>{""}) << "told once, however late";
  }
  EXPECT_EQ(preparation->attempt(), 2u);
  EXPECT_EQ(preparation->target_epoch(), 2u);
  EXPECT_EQ(preparation->target().members, names_);
}

TEST_F(PreparationTest, FailsWhenConnectionTimesOut) {
  auto preparation = Begin(Prepare(target_));
  ASSERT_TRUE(preparation.ok()) << preparation.status().message();
  EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart + seconds(29)).ok());
  EXPECT_FALSE(preparation->answered());
  EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart + seconds(30)).ok());
  ASSERT_EQ(world_.answers.size(), 1u);
  EXPECT_EQ(world_.answers[0].find("no connection in time with b"), 0u) << world_.answers[0];
  Connect();
  EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart + seconds(31)).ok());
  EXPECT_EQ(world_.answers.size(), 1u) << "the answer stands";
}

TEST_F(PreparationTest, CompletesForLeaverWithoutConnections) {
  const TestMaps without(2, -1, {"b"}, {EndpointOf(*b_)});
  auto preparation = Begin(Prepare(without));
  ASSERT_TRUE(preparation.ok()) << preparation.status().message();
  EXPECT_TRUE(preparation->Answer(*a_, &world_, kStart).ok());
  EXPECT_EQ(world_.answers, std::vector<std::string>{""});
}

// A rank that serves in the target immediately learns of the flip from its agent.
TEST_F(PreparationTest, FollowsOthersOnlyAsJoinerWithoutRequests) {
  tg_event event = Prepare(target_);
  event.joining = 1;
  EXPECT_FALSE(Begin(event)->joins()) << "attention is by data: requests are here at once";
  TestMaps first(1, 0, names_, {EndpointOf(*a_), EndpointOf(*b_)}, true);
  tg_event begins = Prepare(first);
  begins.joining = 1;
  EXPECT_FALSE(Begin(begins)->joins());
}

TEST_F(PreparationTest, PausesStepsOnlyWhenRequested) {
  tg_event event = Prepare(target_);
  EXPECT_EQ(Begin(event)->paused_until(), Clock::time_point());
  event.pause_steps = 1;
  EXPECT_EQ(Begin(event)->paused_until(), kStart + seconds(10));
  event.repair = 1;
  EXPECT_EQ(Begin(event)->paused_until(), Clock::time_point())
      << "in a repair no rank computes steps";
}

// One expert of four granules, in pieces.
class PreparationOfExperts : public PreparationTest {
 protected:
  std::string RefusalOf(std::vector<tg_piece> pieces, uint32_t replicas) {
    tg_model model = world_.model();
    model.experts = 1;
    model.granules = 4;
    tg_expert expert{};
    expert.replicas = replicas;
    expert.shards = replicas == 0 ? 0 : static_cast<uint32_t>(pieces.size()) / replicas;
    expert.pieces = pieces.data();
    tg_layer_map layer = *target_.maps.layers;
    layer.moe_ordinal = 0;
    layer.experts = &expert;
    tg_maps maps = target_.maps;
    maps.layers = &layer;
    tg_event event = Prepare(target_);
    event.target = &maps;
    return Preparation::Begin(event, model, a_.get(), kLimits, &patience_, kStart)
        .status()
        .message();
  }
  static tg_piece Piece(uint32_t start, uint32_t count) {
    tg_piece piece{};
    piece.granule_start = start;
    piece.granule_count = count;
    return piece;
  }
};

TEST_F(PreparationOfExperts, RequiresEveryGranuleOncePerReplica) {
  EXPECT_EQ(RefusalOf({Piece(0, 4)}, 1), "");
  EXPECT_EQ(RefusalOf({Piece(0, 2), Piece(2, 2), Piece(0, 0), Piece(0, 4)}, 2), "");
  const std::string wrong = "layer 0 expert 0 copy 0 does not hold the 4 granules exactly once";
  EXPECT_EQ(RefusalOf({Piece(0, 3)}, 1), wrong);
  EXPECT_EQ(RefusalOf({Piece(0, 2), Piece(1, 2)}, 1), wrong);
  EXPECT_EQ(RefusalOf({Piece(2, 2), Piece(0, 2)}, 1), wrong);
  EXPECT_EQ(RefusalOf({}, 0), "layer 0 expert 0 is on no rank");
}

}  // namespace
}  // namespace tangram::engine::testing
