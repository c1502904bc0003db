// Worlds of engines against the oracle: tokens and logit hashes of every request must equal those
// of one plain process, in any layout and through any chain of flips.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "e2e/engine/testing/checkpoint_files.h"
#include "e2e/engine/testing/oracles.h"

namespace tangram::engine {
namespace {

using testing::ExpectAllFree;
using testing::GroupsOfSize;
using testing::LayoutSpec;
using testing::MakeRequest;
using testing::ModelSpec;
using testing::TestWorld;
using testing::Uniform;

const model::Checkpoint& TestCheckpoint() {
  static const std::unique_ptr<model::Checkpoint> checkpoint = [] {
    const ModelSpec spec;
    const std::filesystem::path dir =
        std::filesystem::temp_directory_path() / ("tangram-world-test-" + std::to_string(getpid()));
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

void ExpectLikeOracle(TestWorld& world, const std::vector<v1::Submit>& submits) {
  testing::ExpectOracles(world, TestCheckpoint(), submits);
}

struct Case {
  const char* name;
  uint32_t ranks, g, t;
};
class LayoutTest : public ::testing::TestWithParam<Case> {};

TEST_P(LayoutTest, MatchesTokensAndLogitsOfOracle) {
  const Case& c = GetParam();
  TestWorld world(&TestCheckpoint(), {.members = c.ranks});
  ASSERT_EQ(world.Failure(), "");
  const Status first = world.net.Flip(Uniform(world.names, 3, c.ranks, c.g, c.t));
  ASSERT_TRUE(first.ok()) << first.message() << world.Failure();
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 9; ++n) {
    submits.push_back(MakeRequest(n, 1 + n * 13, 12 + n));
    world.Submit(n % c.ranks, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
  uint64_t routed = 0, rows = 0;
  for (const auto& rank : world.ranks) routed += rank->world->routed();
  for (const v1::Submit& submit : submits) rows += submit.prompt_size() + submit.max_tokens() - 1;
  EXPECT_EQ(routed, rows * 2 * 3) << "two MoE layers, top 3";
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutTest,
                         ::testing::Values(Case{"One", 1, 1, 1}, Case{"Expert2", 2, 1, 1},
                                           Case{"Expert5", 5, 1, 1}, Case{"Tensor3", 3, 3, 3},
                                           Case{"Tensor5", 5, 5, 5}, Case{"Tensor6", 6, 6, 6},
                                           Case{"Hybrid4", 4, 2, 2}, Case{"HybridUneven5", 5, 2, 3},
                                           Case{"ExpertsSplitAttentionNot", 4, 4, 1},
                                           Case{"AttentionSplitExpertsNot", 4, 1, 4}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WorldTest, MatchesOracleWithMixedLayersAndRedundantExperts) {
  TestWorld world(&TestCheckpoint(), {.members = 4});
  LayoutSpec spec = Uniform(world.names, 3, 4, 1, 1);
  spec.layers[0] = {GroupsOfSize(4, 1), true, GroupsOfSize(4, 4)};
  spec.layers[1].attention = GroupsOfSize(4, 2);
  spec.layers[2] = {GroupsOfSize(4, 2), true, {{3, 1, 0}, {2}}};
  ASSERT_TRUE(world.net.Flip(spec).ok());
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 8; ++n) {
    submits.push_back(MakeRequest(n, 40 - n * 4, 20));
    world.Submit(n % 4, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
}

// Of two replicas of an expert, a rank with a replica serves its own rows. The rank without one
// alternates between both, in every layer, whatever other requests come in between.
TEST(WorldTest, ReplicasServeOwnRankAndAlternateForOthers) {
  constexpr size_t kRanks = 3;
  TestWorld world(&TestCheckpoint(), {.members = kRanks});
  LayoutSpec spec = Uniform(world.names, 3, kRanks, 1, 1);
  for (auto& layer : spec.layers) layer.redundant = true;
  ASSERT_TRUE(world.net.Flip(spec).ok());
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 6; ++n) {
    submits.push_back(MakeRequest(n, 3, 60));
    world.Submit(n % kRanks, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
  uint64_t executed = 0, routed = 0, shared = 0;
  for (const auto& rank : world.ranks) routed += rank->world->routed();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t e = 0; e < ModelSpec{}.experts; ++e) {
      const auto of = [&](const auto& counts) {
        const auto it = counts.find({layer, e});
        return it == counts.end() ? uint64_t{0} : it->second;
      };
      uint64_t on[kRanks], asked[kRanks];
      size_t without = kRanks;  // the rank without a replica
      for (size_t r = 0; r < kRanks; ++r) {
        on[r] = of(world.ranks[r]->world->executed());
        asked[r] = of(world.ranks[r]->world->routed_by());
        executed += on[r];
        if (on[r] == 0) without = r;
      }
      if (e % 3 != 0) {
        EXPECT_GE(std::count(on, on + kRanks, 0), 2) << "one copy";
        continue;
      }
      ASSERT_LT(without, kRanks) << "layer " << layer << ", expert " << e << ": two copies";
      for (size_t r = 0; r < kRanks; ++r) {
        if (r == without) continue;
        shared += asked[r];
        EXPECT_GE(on[r], asked[r] + asked[without] / 2) << "layer " << layer << ", expert " << e;
        EXPECT_LE(on[r], asked[r] + (asked[without] + 1) / 2)
            << "layer " << layer << ", expert " << e;
      }
    }
  }
  EXPECT_EQ(executed, routed);
  EXPECT_GT(shared, 100u);
}

TEST(WorldTest, SequenceOfFlipsChangesNoBit) {
  TestWorld world(&TestCheckpoint(), {.members = 6, .kv_bytes = 4 << 20});
  const auto four = world.Names(4);
  ASSERT_TRUE(world.net.Flip(Uniform(four, 3, 4, 1, 1)).ok());
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 12; ++n) {
    submits.push_back(MakeRequest(n, 5 + n * 9, 380));
    world.Submit(n % 4, submits.back());
  }
  const auto flip = [&](const LayoutSpec& spec, const char* what) {
    const Status status = world.net.Flip(spec);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message() << world.Failure();
  };
  ASSERT_TRUE(world.sink.WaitTokens("r11", 3)) << world.Failure();
  flip(Uniform(world.names, 3, 4, 1, 1), "join");
  flip(Uniform(world.names, 3, 6, 1, 1), "expert 4 -> 6");
  LayoutSpec walk = Uniform(world.names, 3, 6, 1, 1);
  for (int l = 2; l >= 0; --l) {
    walk.layers[l] = {GroupsOfSize(6, 6), false, GroupsOfSize(6, 6)};
    flip(walk, "walk to tensor");
  }
  for (int l = 0; l < 3; ++l) {
    walk.layers[l] = {GroupsOfSize(6, 2), true, GroupsOfSize(6, 3)};
    flip(walk, "walk to hybrid");
  }
  flip(Uniform(world.names, 3, 4, 1, 1), "expert 6 -> 4");
  flip(Uniform(four, 3, 4, 1, 1), "leave");
  // Another order of ranks: every rank changes its number, and the last two join again.
  std::vector<std::string> back = {four[2], four[0], four[3], four[1]};
  flip(Uniform(back, 3, 4, 2, 2), "renumber");
  back.push_back(world.names[5]);
  flip(Uniform(back, 3, 4, 2, 2), "join again");
  flip(Uniform(back, 3, 5, 5, 5), "tensor 5");
  bool all_moved_while_running = true;
  for (const v1::Submit& submit : submits) {
    all_moved_while_running &= world.sink.Stream(submit.request()).size() < 380;
  }
  EXPECT_TRUE(all_moved_while_running) << "the tour must end before the requests do";
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
}

// Experts move, attention stays: no rank gathers KV manifests, plans a migration or fetches KV.
TEST(WorldTest, FlipKeepsKvInPlaceWhenAttentionIsUnchanged) {
  TestWorld world(&TestCheckpoint(), {.members = 4, .kv_bytes = 4 << 20});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 4, 1, 2)).ok());
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 8; ++n) {
    submits.push_back(MakeRequest(n, 5 + n * 9, 200));
    world.Submit(n % 4, submits.back());
  }
  // Other requests end during the flips, so that blocks are freed around them.
  for (uint32_t n = 8; n < 40; ++n) {
    submits.push_back(MakeRequest(n, 20, 1 + n));
    world.Submit(n % 4, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitTokens("r7", 3)) << world.Failure();
  for (uint32_t round = 0; round < 6; ++round) {
    ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 4, round % 2 == 0 ? 4 : 1, 2)).ok())
        << world.Failure();
  }
  for (const auto& rank : world.ranks) EXPECT_EQ(rank->engine->turn().carried(), 0u);
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 4, 1, 1)).ok()) << world.Failure();
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
  for (const auto& rank : world.ranks) {
    EXPECT_EQ(rank->engine->turn().flips(), 7u);
    EXPECT_EQ(rank->engine->turn().carried(), 1u);
  }
}

TEST(WorldTest, CancelFreesKvOnEveryRankOfGroup) {
  TestWorld world(&TestCheckpoint(), {.members = 3});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 3, 3, 3)).ok());
  const v1::Submit longest = MakeRequest(1, 30, 400);
  const v1::Submit other = MakeRequest(2, 20, 30);
  world.Submit(0, longest);
  ASSERT_TRUE(world.sink.WaitTokens("r1", 5)) << world.Failure();
  world.Cancel("r1");
  world.Submit(1, other);
  ASSERT_TRUE(world.sink.WaitFinished(1)) << world.Failure();
  EXPECT_LT(world.sink.Stream("r1").size(), 400u);
  ExpectLikeOracle(world, {other});
  // One more request, so that the freed blocks of the last one are reported to all homes.
  const v1::Submit last = MakeRequest(4, 3, 2);
  world.Submit(2, last);
  ASSERT_TRUE(world.sink.WaitFinished(2)) << world.Failure();
  testing::ExpectNothingHeld(world);
}

TEST(WorldTest, DeclinesFlipUntilKvFits) {
  // 3 layers * 2 KV heads * 2 KiB a block: 12 KiB; 40 blocks a rank, 30 of them for admission.
  TestWorld world(&TestCheckpoint(), {.members = 2, .kv_bytes = 40 * 12 * 1024});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 2, 1, 1)).ok());
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 2; ++n) {
    submits.push_back(MakeRequest(n, 40, 430));  // 30 blocks
    world.Submit(n, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitTokens("r0", 2));
  ASSERT_TRUE(world.sink.WaitTokens("r1", 2));
  // Both requests on one rank would need 60 blocks.
  const Status status = world.net.Flip(Uniform(world.names, 3, 1, 1, 1), 60);
  EXPECT_TRUE(status.ok()) << status.message() << world.Failure();
  ASSERT_TRUE(world.sink.WaitFinished(2)) << world.Failure();
  ExpectLikeOracle(world, submits);
  ExpectAllFree(world);
  EXPECT_GT(world.ranks[0]->engine->turn().declined(), 0u);
  EXPECT_EQ(world.ranks[0]->engine->turn().declined(), world.ranks[1]->engine->turn().declined());
}

TEST(WorldTest, RejectionsNameReason) {
  Engine::Options options;
  options.reference.limits.max_model_len = 256;
  TestWorld world(&TestCheckpoint(), {.members = 2, .engine = options});
  world.Submit(0, MakeRequest(1, 4, 4));
  ASSERT_TRUE(world.sink.WaitRefused(1));
  EXPECT_EQ(world.sink.refused()[0].code(), v1::Refused::CODE_NOT_READY);
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 1, 1, 1)).ok());
  world.Submit(1, MakeRequest(2, 4, 4));  // a member without an attention group
  ASSERT_TRUE(world.sink.WaitRefused(2));
  EXPECT_EQ(world.sink.refused()[1].code(), v1::Refused::CODE_NOT_READY);
  world.Submit(0, MakeRequest(3, 200, 100));
  ASSERT_TRUE(world.sink.WaitRefused(3));
  EXPECT_EQ(world.sink.refused()[2].code(), v1::Refused::CODE_INVALID);
  EXPECT_NE(world.sink.refused()[2].message().find("300"), std::string::npos);
}

// A rank's telemetry matches its requests.
TEST(WorldTest, TelemetryAddsUp) {
  TestWorld world(&TestCheckpoint(), {.members = 1, .kv_bytes = 4 << 20});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 1, 1, 1)).ok());
  uint64_t prompts = 0, answers = 0;
  for (uint32_t n = 0; n < 6; ++n) {
    const v1::Submit submit = MakeRequest(n, 40 + n, 10 + n);
    prompts += 40 + n;
    answers += 10 + n;
    world.Submit(0, submit);
  }
  ASSERT_TRUE(world.sink.WaitFinished(6)) << world.Failure();
  v1::RankTelemetry told = world.sink.WaitTelemetry(6);
  EXPECT_EQ(told.arrived(), 6u);
  EXPECT_EQ(told.finished(), 6u);
  EXPECT_EQ(told.prompt_tokens(), prompts);
  EXPECT_EQ(told.output_tokens(), answers);
  EXPECT_EQ(told.prefill_tokens(), prompts);
  EXPECT_EQ(told.decode_tokens(), answers - 6) << "the last token of each is never computed on";
  EXPECT_EQ(told.reused_tokens(), 0u);
  EXPECT_EQ(told.decoding() + told.queued_tokens() + told.context_tokens() +
                told.generated_tokens() + told.reserved_tokens() + told.waiting_tokens(),
            0u);
  EXPECT_EQ(told.queue_age(), 0);
  EXPECT_EQ(told.epoch(), 1u);
  uint64_t steps = 0, decode = 0, prefill = 0;
  double seconds = 0;
  for (const v1::StepCell& cell : told.cells()) {
    steps += cell.steps();
    decode += cell.decode();
    prefill += cell.prompt_tokens();
    seconds += cell.seconds();
    EXPECT_EQ(cell.prefill(), cell.prompt_tokens() > 0);
    EXPECT_GE(cell.context(), cell.decode());
    const uint64_t tokens = cell.decode() + cell.prompt_tokens();
    EXPECT_GE(tokens, cell.steps() << cell.octave());
    EXPECT_LT(tokens, cell.steps() << (cell.octave() + 1));
  }
  EXPECT_EQ(steps, told.steps());
  EXPECT_EQ(decode + prefill, prompts + answers - 6);
  EXPECT_NEAR(seconds, told.step_seconds(), 1e-9);
  EXPECT_GT(seconds, 0);

  // The same prompt reuses its full blocks while the first request still runs. The new epoch's
  // steps are counted from zero, and all other counters continue.
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 1, 1, 1)).ok());
  world.Submit(0, MakeRequest(10, 40, 300));
  ASSERT_TRUE(world.sink.WaitTokens("r10", 2)) << world.Failure();
  v1::Submit again = MakeRequest(10, 40, 300);
  again.set_request("again");
  world.Submit(0, again);
  ASSERT_TRUE(world.sink.WaitFinished(8)) << world.Failure();
  told = world.sink.WaitTelemetry(8);
  EXPECT_EQ(told.epoch(), 2u);
  EXPECT_EQ(told.reused_tokens(), 32u) << "two blocks of 16";
  EXPECT_EQ(told.prefill_tokens(), prompts + 80 - 32);
  uint64_t now = 0;
  for (const v1::StepCell& cell : told.cells()) now += cell.steps();
  EXPECT_LT(now, told.steps());
  EXPECT_GE(now, 300u);
  ExpectAllFree(world);
}

// A fence removed it while it hung: it detects that by itself, emits no more, and ends the others'
// wait for it.
TEST(WorldTest, AbandonsStepWhenAgentStopsEngine) {
  TestWorld world(&TestCheckpoint(), {.members = 3});
  ASSERT_TRUE(world.net.Flip(Uniform(world.names, 3, 3, 1, 1)).ok());
  for (uint32_t n = 0; n < 3; ++n) world.Submit(n, MakeRequest(n, 4, 400));
  for (uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(world.sink.WaitTokens("r" + std::to_string(n), 3));
  world.net.Stop(world.names[1]);
  ASSERT_TRUE(world.net.WaitStopped({world.names[0], world.names[2]})) << world.Failure();
  world.Stop();
  EXPECT_TRUE(world.ranks[1]->engine->turn().stopped());
  EXPECT_LT(world.sink.Stream("r1").size(), 400u);
}

struct Death {
  const char* name;
  uint32_t ranks, g, t, dead;
  bool doubled;  // a survivor takes the dead rank's position of each expert group
};
class RepairTest : public ::testing::TestWithParam<Death> {};

TEST_P(RepairTest, SurvivorsMatchTokensOfOracle) {
  const Death& c = GetParam();
  TestWorld world(&TestCheckpoint(), {.members = c.ranks});
  ASSERT_EQ(world.Failure(), "");
  const Status first = world.net.Flip(Uniform(world.names, 3, c.ranks, c.g, c.t));
  ASSERT_TRUE(first.ok()) << first.message() << world.Failure();
  std::vector<v1::Submit> submits;
  for (uint32_t n = 0; n < 9; ++n) {
    submits.push_back(MakeRequest(n, 1 + n * 13, 40 + n));
    world.Submit(n % c.ranks, submits.back());
  }
  ASSERT_TRUE(world.sink.WaitTokens("r0", 5)) << world.Failure();
  ASSERT_TRUE(world.sink.WaitTokens("r" + std::to_string(c.dead), 5)) << world.Failure();
  world.Kill(c.dead);
  std::vector<std::string> survivors = world.names;
  survivors.erase(survivors.begin() + c.dead);
  ASSERT_TRUE(world.net.WaitStopped(survivors)) << world.Failure();

  LayoutSpec after =
      Uniform(survivors, 3, c.ranks - 1, std::min(c.g, c.ranks - 1), std::min(c.t, c.ranks - 1));
  if (c.doubled) {
    for (uint32_t l = 0; l < after.layers.size(); ++l) {
      testing::Ranks group;
      for (uint32_t r = 0; r < c.ranks; ++r) {
        group.push_back(r == c.dead ? l % (c.ranks - 1) : r < c.dead ? r : r - 1);
      }
      after.layers[l].experts = {group};
    }
  }
  const Status repaired = world.net.Repair(after);
  ASSERT_TRUE(repaired.ok()) << repaired.message() << world.Failure();
  // Requests of the dead rank's home are submitted again, with the tokens so far.
  for (uint32_t n = c.dead; n < submits.size(); n += c.ranks) {
    const std::vector<v1::Token> given = world.sink.Stream(submits[n].request());
    if (!given.empty() && given.back().finish() != v1::FINISH_UNSPECIFIED) continue;
    v1::Submit again = submits[n];
    for (const v1::Token& token : given) again.add_prompt(token.token());
    again.set_generated(static_cast<uint32_t>(given.size()));
    world.Submit(c.dead == 0 ? 1 : 0, again);
  }
  ASSERT_TRUE(world.sink.WaitFinished(submits.size())) << world.Failure();
  ExpectLikeOracle(world, submits);
  world.Stop();
  EXPECT_EQ(world.Failure(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Deaths, RepairTest,
    ::testing::Values(Death{"expert", 3, 1, 1, 1, false}, Death{"expert_first", 4, 1, 1, 0, false},
                      Death{"tensor", 3, 3, 3, 2, true}, Death{"tensor_first", 3, 3, 3, 0, true},
                      Death{"experts_shared", 3, 3, 1, 1, true}, Death{"to_one", 2, 2, 2, 1, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tangram::engine
