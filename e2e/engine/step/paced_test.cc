// Paced ranks: steps last as the table says, the bits are unchanged, and neither a permit nor a
// fence nor a death waits for the end of a step.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "agent/base/testing/hang.h"
#include "e2e/engine/model/oracle.h"
#include "e2e/engine/testing/checkpoint_files.h"
#include "e2e/engine/testing/pace_table.h"
#include "e2e/engine/testing/test_world.h"

namespace tangram::engine {
namespace {

using testing::FixedTable;
using testing::ModelSpec;
using testing::TestWorld;
using testing::Uniform;
using Clock = std::chrono::steady_clock;

const model::Checkpoint& TestCheckpoint() {
  static const std::unique_ptr<model::Checkpoint> checkpoint = [] {
    const ModelSpec spec;
    const std::filesystem::path dir =
        std::filesystem::temp_directory_path() / ("tangram-paced-test-" + std::to_string(getpid()));
    testing::WriteCheckpoint(dir, spec, 11);
    auto opened = model::Checkpoint::Open(dir, spec.granule_rows);
    std::filesystem::remove_all(dir);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.status().message();
      std::abort();
    }
    return std::move(*opened);
  }();
  return *checkpoint;
}

v1::Submit MakeRequest(const std::string& id, uint32_t tokens) {
  v1::Submit out;
  out.set_request(id);
  for (uint32_t i = 0; i < 5; ++i) out.add_prompt(7 + i);
  out.set_max_tokens(tokens);
  return out;
}

Engine::Options Paced(double ms) {
  Engine::Options out;
  out.reference.pace.table =
      FixedTable({{{2, 1, 1}, ms}, {{2, 2, 2}, ms}, {{1, 1, 1}, ms}, {{3, 1, 1}, ms}});
  return out;
}

double Since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

void ExpectTheOracles(TestWorld& world, const v1::Submit& submit) {
  const auto oracle = model::Oracle::Create(TestCheckpoint());
  ASSERT_TRUE(oracle.ok());
  const std::vector<model::OracleRequest> requests = {
      {{submit.prompt().begin(), submit.prompt().end()}, submit.max_tokens(), {}, {}}};
  const auto want = oracle->Run(requests, {});
  ASSERT_TRUE(want.ok());
  const std::vector<v1::Token> got = world.sink.Stream(submit.request());
  ASSERT_EQ(got.size(), submit.max_tokens());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].logit_hash(), (*want)[0].hashes[i]);
}

// A step of an hour: waiting for its end exceeds every limit here.
Engine::Options PacedForEver() {
  constexpr double kHourMs = 3'600'000;
  Engine::Options out = Paced(kHourMs);
  out.reference.pace.most = std::chrono::hours(2);
  return out;
}

// Waits until all ranks are in the middle of a step.
bool Begin(const TestWorld& world) {
  return tangram::testing::Eventually([&] {
    return std::ranges::all_of(
        world.ranks, [](const auto& rank) { return rank->engine->reference().pace_waits() > 0; });
  });
}

TEST(PacedWorldRealTime, StepDurationsMatchTable) {
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = Paced(25)});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 2, 1, 1)).ok()) << world.Failure();
  const Clock::time_point begun = Clock::now();
  const v1::Submit submit = MakeRequest("r", 40);
  world.Submit(0, submit);
  ASSERT_TRUE(world.sink.WaitTokens("r", 1)) << world.Failure();
  EXPECT_GE(Since(begun), .025) << "the first token comes at the end of its step";
  ASSERT_TRUE(world.sink.WaitFinished(1)) << world.Failure();
  const double took = Since(begun);
  world.Stop();
  EXPECT_EQ(world.Failure(), "");
  const PaceCounts& counts = world.ranks[0]->engine->reference().pace_counts();
  EXPECT_EQ(counts.steps, 40u);
  EXPECT_NEAR(counts.seconds, 1, 1e-9);
  EXPECT_EQ(counts.cut, 0u);
  EXPECT_GE(took, .999);
  if (counts.overruns == 0) {
    EXPECT_LT(took, 1.2) << "a late wake-up is made good";
  }

  ExpectTheOracles(world, submit);
}

// Work that takes longer than its paced step is reported.
TEST(PacedWorldTest, CountsOverruns) {
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = Paced(1e-4)});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 2, 1, 1)).ok()) << world.Failure();
  world.Submit(0, MakeRequest("r", 30));
  ASSERT_TRUE(world.sink.WaitFinished(1)) << world.Failure();
  world.Stop();
  const PaceCounts& home = world.ranks[0]->engine->reference().pace_counts();
  EXPECT_EQ(home.steps, 30u);
  EXPECT_EQ(home.overruns, 30u);
  const PaceCounts& other = world.ranks[1]->engine->reference().pace_counts();
  EXPECT_GE(other.steps, 29u) << "it may lose the home in the last one";
  EXPECT_EQ(other.overruns, other.steps);
}

TEST(PacedWorldTest, PermitDoesNotWaitForStep) {
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = PacedForEver()});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 2, 1, 1)).ok()) << world.Failure();
  world.Submit(0, MakeRequest("r", 400));
  ASSERT_TRUE(Begin(world)) << world.Failure();
  const Status flipped = world.net.Flip(Uniform(world.names, 3, 2, 2, 2));
  EXPECT_TRUE(flipped.ok()) << flipped.message() << world.Failure();
  world.Stop();
  EXPECT_EQ(world.Failure(), "");
  EXPECT_GE(world.ranks[0]->engine->reference().pace_counts().cut, 1u) << "a step was under way";
  EXPECT_LE(world.ranks[0]->engine->reference().pace_counts().cut, 3u)
      << "its permit, the others', the end";
}

TEST(PacedWorldTest, FenceDoesNotWaitForStep) {
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = PacedForEver()});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 2, 1, 1)).ok()) << world.Failure();
  world.Submit(0, MakeRequest("r0", 400));
  world.Submit(1, MakeRequest("r1", 400));
  ASSERT_TRUE(Begin(world)) << world.Failure();
  world.net.Stop(world.names[0]);
  EXPECT_TRUE(world.net.WaitStopped({world.names[1]})) << "it saw the other hang up";
  world.Stop();
  EXPECT_TRUE(world.ranks[0]->engine->turn().stopped());
  EXPECT_TRUE(world.sink.Stream("r0").empty()) << "who was left out says no more";
  EXPECT_EQ(world.ranks[0]->engine->reference().pace_counts().steps, 0u)
      << "a step that was given up is none";
}

TEST(PacedWorldTest, DetectsDeathDuringStep) {
  TestWorld world(&TestCheckpoint(), {.members = 3, .engine = PacedForEver()});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 3, 1, 1)).ok()) << world.Failure();
  world.Submit(0, MakeRequest("r", 400));
  ASSERT_TRUE(Begin(world)) << world.Failure();
  world.Kill(2);
  EXPECT_TRUE(world.net.WaitStopped({world.names[0], world.names[1]})) << world.Failure();
}

// After a repair, steps have the pace of the new layout, and the bits equal the oracle's.
TEST(PacedWorldTest, SurvivorsUsePaceOfNewLayout) {
  Engine::Options options;
  options.reference.pace.table = FixedTable({{{3, 1, 1}, 100}, {{2, 1, 1}, 10}});
  TestWorld world(&TestCheckpoint(), {.members = 3, .engine = options});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 3, 1, 1)).ok()) << world.Failure();
  const v1::Submit submit = MakeRequest("r", 30);
  world.Submit(0, submit);
  ASSERT_TRUE(world.sink.WaitTokens("r", 2)) << world.Failure();
  world.Kill(2);
  ASSERT_TRUE(world.net.WaitStopped(world.Names(2))) << world.Failure();
  const size_t before = world.sink.Stream("r").size();
  const Status repaired = world.net.Repair(Uniform(world.Names(2), 3, 2, 1, 1));
  ASSERT_TRUE(repaired.ok()) << repaired.message() << world.Failure();
  const Clock::time_point begun = Clock::now();
  const size_t after = world.sink.Stream("r").size();
  ASSERT_TRUE(world.sink.WaitFinished(1)) << world.Failure();
  EXPECT_GE(Since(begun), (29 - static_cast<double>(after)) * .01);
  world.Stop();
  const double slow = static_cast<double>(before) + 1;  // a step that was counted without a token
  EXPECT_LT(world.ranks[0]->engine->reference().pace_counts().seconds, slow * .1 + 30 * .01)
      << "no longer at the pace of three";
  ExpectTheOracles(world, submit);
}

// All ranks compute the same skew from each rank's count of executed experts.
TEST(PacedWorldTest, MeasuresExpertImbalance) {
  Engine::Options options = Paced(1);
  options.reference.pace.imbalance = true;
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = options});
  testing::LayoutSpec spec = Uniform(world.names, 3, 2, 1, 1);
  for (testing::LayerSpec& layer : spec.layers) layer.experts = {{0}};  // all on one of two ranks
  ASSERT_TRUE(world.net.Flip(spec).ok()) << world.Failure();
  world.Submit(0, MakeRequest("r0", 60));
  world.Submit(1, MakeRequest("r1", 60));
  ASSERT_TRUE(world.sink.WaitFinished(2)) << world.Failure();
  world.Stop();
  EXPECT_NEAR(world.ranks[0]->engine->reference().pace_imbalance(), 2, .1);
  EXPECT_NEAR(world.ranks[0]->engine->reference().pace_imbalance(),
              world.ranks[1]->engine->reference().pace_imbalance(), .01)
      << "but for a last step that one of them lost";
}

// A layout that is not in the table is rejected before anything changes; a repair is not.
TEST(PacedWorldTest, RejectsLayoutMissingFromTable) {
  TestWorld world(&TestCheckpoint(), {.members = 3, .engine = Paced(5)});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 3, 1, 1)).ok()) << world.Failure();
  const Status refused = world.net.Flip(Uniform(world.names, 3, 3, 3, 3));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("has no g=3,t=3 on 3 ranks"), std::string::npos)
      << refused.message();
  world.Submit(0, MakeRequest("r", 3));
  EXPECT_TRUE(world.sink.WaitFinished(1)) << world.Failure();
}

}  // namespace
}  // namespace tangram::engine
