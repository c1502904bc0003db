// KV ahead of the flip: the rest that the flip moves; and no failure of a copy changes a token or
// loses a page.
#include "e2e/engine/transition/ahead.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "e2e/engine/testing/checkpoint_files.h"
#include "e2e/engine/testing/oracles.h"

namespace tangram::engine {
namespace {

using testing::ExpectAllFree;
using testing::ExpectNothingHeld;
using testing::ExpectOracles;
using testing::LayoutSpec;
using testing::MakeRequest;
using testing::ModelSpec;
using testing::TestWorld;
using testing::Uniform;

constexpr uint32_t kRanks = 4, kLayers = 3;
constexpr uint32_t kBlockBytes = 12 * 1024;  // 3 layers * 2 KV heads * 2 KiB

const model::Checkpoint& TestCheckpoint() {
  static const std::unique_ptr<model::Checkpoint> checkpoint = [] {
    ModelSpec spec;
    spec.positions = 2048;
    const std::filesystem::path dir =
        std::filesystem::temp_directory_path() / ("tangram-ahead-test-" + std::to_string(getpid()));
    testing::WriteCheckpoint(dir, spec, 12);
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

struct Sum {
  uint64_t used = 0, ahead = 0, flip = 0;
};

class AheadTest : public ::testing::Test {
 protected:
  void Begin(uint32_t kv_bytes, std::chrono::milliseconds waits = std::chrono::seconds(20),
             std::chrono::milliseconds most_paused = std::chrono::hours(1)) {
    TestWorld::Options options{.members = kRanks, .kv_bytes = kv_bytes};
    options.engine.turn.kv_ahead = waits;
    options.engine.turn.most_paused = most_paused;
    world_ = std::make_unique<TestWorld>(&TestCheckpoint(), options);
    ASSERT_EQ(world_->Failure(), "");
    Flip(Of(1));
  }
  LayoutSpec Of(uint32_t t) { return Uniform(world_->names, kLayers, kRanks, t, t); }
  void Flip(const LayoutSpec& spec) {
    const Status status = world_->net.Flip(spec, 60);
    ASSERT_TRUE(status.ok()) << status.message() << world_->Failure();
  }
  void Submit(uint32_t n, uint32_t prompt, uint32_t tokens) {
    submits_.push_back(MakeRequest(n, prompt, tokens));
    world_->Submit(n % kRanks, submits_.back());
  }
  bool HasTokens(const v1::Submit& submit, size_t count) {
    return world_->sink.Stream(submit.request()).size() >= count;
  }
  // At the end every token is the oracle's, and every page is free.
  void ExpectNothingHappened() {
    ASSERT_TRUE(world_->sink.WaitFinished(submits_.size())) << world_->Failure();
    ExpectOracles(*world_, TestCheckpoint(), submits_);
    ExpectAllFree(*world_);
  }
  // Read it after the world has stopped.
  Sum Carried() const {
    Sum out;
    for (const auto& rank : world_->ranks) {
      const auto& carried = rank->engine->reference().carried();
      out.used += carried.used;
      out.ahead += carried.ahead;
      out.flip += carried.flip;
    }
    return out;
  }

  std::unique_ptr<TestWorld> world_;
  std::vector<v1::Submit> submits_;
};

TEST_F(AheadTest, FlipMovesAtMostTwoPercentOfLongContexts) {
  ASSERT_NO_FATAL_FAILURE(Begin(24 << 20));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 1040 + 5 * n, 160);
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), 3)) << world_->Failure();
  }
  ASSERT_NO_FATAL_FAILURE(Flip(Of(kRanks)));
  ASSERT_NO_FATAL_FAILURE(Flip(Of(1)));
  for (const v1::Submit& submit : submits_) {
    EXPECT_FALSE(HasTokens(submit, submit.max_tokens())) << "the flips must find it";
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  const Sum carried = Carried();
  EXPECT_LE(carried.flip * 50, carried.used + carried.flip)
      << carried.flip << " bytes in the flips, " << carried.used << " ahead";
  EXPECT_GT(carried.used, 4 * 65 * kBlockBytes)
      << "65 blocks each, and half of them twice at least";
}

// Two of four ranks stop being homes. Their requests' targets are promised while they run, so that
// all but partly filled blocks are copied before the flip. Idle prefixes migrate, too.
TEST_F(AheadTest, CopiesRequestsOfLeavingHomesAhead) {
  ASSERT_NO_FATAL_FAILURE(Begin(48 << 20));
  submits_.push_back(MakeRequest(90, 200, 4));
  world_->Submit(3, submits_.back());
  ASSERT_TRUE(world_->sink.WaitTokens("r90", 4)) << world_->Failure();
  for (uint32_t n = 0; n < 2 * kRanks; ++n) Submit(n, 500 + 5 * n, 160);
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), 3)) << world_->Failure();
  }
  const LayoutSpec two = Uniform({world_->names[0], world_->names[1]}, kLayers, 2, 1, 1);
  ASSERT_NO_FATAL_FAILURE(Flip(two));
  EXPECT_FALSE(HasTokens(submits_.back(), 160)) << "the flip must find it";
  ASSERT_TRUE(world_->sink.WaitFinished(submits_.size())) << world_->Failure();
  ExpectOracles(*world_, TestCheckpoint(), submits_);
  const Sum carried = Carried();
  EXPECT_LE(carried.flip, 2 * (2 + 8 + 4) * kBlockBytes)
      << "at each of two ranks blocks half full of two requests, and of full ones eight, as long "
         "as "
         "that is not behind, and those filled since";
  EXPECT_GE(carried.used, 4 * 28 * kBlockBytes) << carried.flip << " bytes came in the flip";
}

// Two ranks, 6 layers, of which the last two change: a rank does not report a KV head that it holds
// in other layers only. If a rank leaves, homes change, and all is reported.
TEST(AheadNews, ReportsOnlyLayersToChange) {
  const kv::Shape shape{
      .query_heads = 4, .kv_heads = 2, .block_tokens = 16, .head_token_bytes = 64};
  const kv::LayerGroups alone{{{0}, {0, 4}}, {{1}, {0, 4}}}, shared{{{0, 1}, {0, 2, 4}}};
  Side from{{6, alone}, {"a", "b"}}, to = from;
  from.groups[4] = from.groups[5] = shared;
  const Side left{{6, kv::LayerGroups{{{0}, {0, 4}}}}, {"a"}};
  const HeldMap held(from.groups, shape, 2);
  PageStore pages(64);
  ASSERT_TRUE(pages.Ensure(0, 7, held, 0).ok());
  const auto heads = [&](const Side& target) {
    Ahead ahead(1, {}, shape, from, target, 0, {});
    ahead.Has({0, 7});
    std::vector<uint32_t> out;
    for (const kv::Strip& strip : ahead.Tell(pages).strips) out.push_back(strip.kv_head);
    return out;
  };
  EXPECT_EQ(heads(to), std::vector<uint32_t>{0});
  EXPECT_EQ(heads(left), (std::vector<uint32_t>{0, 1}));
}

// Blocks are filled, freed, cancelled and begun while they are copied, copies are late and fail,
// attempts are aborted: 12 walks, each with a different order of events.
class AheadWalk : public AheadTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(AheadWalk, ChangesNoBit) {
  std::mt19937 random(GetParam());
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  ASSERT_NO_FATAL_FAILURE(Begin(3 << 20, std::chrono::milliseconds(draw(2) * 200)));
  world_->net.SetStaging({.looks = 1 + draw(4), .fails = draw(3) == 0 ? 2 + draw(3) : 0});
  std::vector<v1::Submit> cancelled;
  uint32_t next = 0;
  for (uint32_t round = 0; round < 6; ++round) {
    for (uint32_t i = 0; i < 6; ++i) Submit(next++, 1 + draw(150), 20 + draw(120));
    for (uint32_t i = 0; i < 2; ++i) {  // these end immediately, or somewhere in the round
      cancelled.push_back(MakeRequest(next++, 30 + draw(150), 300));
      world_->Submit(next % kRanks, cancelled.back());
    }
    ASSERT_TRUE(world_->sink.WaitTokens(submits_.back().request(), 1)) << world_->Failure();
    world_->net.SetPause(draw(3) == 0);
    const uint32_t t = 1u << draw(3);
    if (draw(3) == 0) {
      uint32_t looks = 1 + draw(60);
      (void)world_->net.Abort(Of(t), [&] { return --looks == 0; });
    } else {
      ASSERT_NO_FATAL_FAILURE(Flip(Of(t)));
    }
    for (const v1::Submit& submit : cancelled) world_->Cancel(submit.request());
    cancelled.clear();
  }
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), submit.max_tokens()))
        << world_->Failure();
  }
  ExpectOracles(*world_, TestCheckpoint(), submits_);
  ExpectNothingHeld(*world_);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AheadWalk, ::testing::Range(0u, 12u));

// While an attempt stays staged, requests that need every page arrive and get the pages.
TEST_F(AheadTest, EvictsCopiesWhenRequestsNeedPages) {
  ASSERT_NO_FATAL_FAILURE(Begin(40 * kBlockBytes));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 200, 90);
  for (uint32_t n = 0; n < kRanks; ++n) {
    ASSERT_TRUE(world_->sink.WaitTokens("r" + std::to_string(n), 2));
  }
  // As large as a rank: admitted only when alone, which copies must not change.
  for (uint32_t n = kRanks; n < 2 * kRanks; ++n) Submit(n, 400, 80);
  const Status aborted = world_->net.Abort(Of(kRanks), [&] {
    return std::all_of(submits_.begin(), submits_.end(), [&](const v1::Submit& submit) {
      return HasTokens(submit, submit.max_tokens());
    });
  });
  EXPECT_EQ(aborted.message(), "aborted");
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_GT(Carried().ahead, 0u);
  EXPECT_EQ(Carried().used, 0u);
}

// Strategy Fast: no rank computes a step from the attempt's begin to its end, copies continue, and
// nothing is left for the flip.
TEST_F(AheadTest, ComputesNoStepWhileAttemptPausesSteps) {
  ASSERT_NO_FATAL_FAILURE(Begin(24 << 20));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 300, 400);
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), 3)) << world_->Failure();
  }
  const auto tokens = [&] {
    size_t out = 0;
    for (const v1::Submit& submit : submits_) out += world_->sink.Stream(submit.request()).size();
    return out;
  };
  world_->net.SetPause(true);
  // A step that began before the attempt ends first.
  size_t seen = 0, still = 0;
  const Status aborted = world_->net.Abort(Of(kRanks), [&] {
    still = seen == tokens() ? still + 1 : 0;
    seen = tokens();
    return still == 200;
  });
  EXPECT_EQ(aborted.message(), "aborted");
  for (const v1::Submit& submit : submits_) {
    EXPECT_FALSE(HasTokens(submit, submit.max_tokens())) << "they stood still because they ended";
  }
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), HasTokens(submit, 390) ? 400 : 10))
        << "they go on when it is over" << world_->Failure();
  }
  const auto begun = std::chrono::steady_clock::now();
  ASSERT_NO_FATAL_FAILURE(Flip(Of(kRanks)));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15))
      << "it waited for copies, of which nobody hears, as long as it may: 20 s";
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  for (const auto& rank : world_->ranks) EXPECT_GT(rank->engine->turn().paused(), 0u);
}

// No driver continues the attempt: the world keeps serving.
TEST_F(AheadTest, ResumesStepsAfterMaximumPause) {
  ASSERT_NO_FATAL_FAILURE(Begin(24 << 20, std::chrono::seconds(20), std::chrono::milliseconds(50)));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 20, 100);
  world_->net.SetPause(true);
  const Status aborted = world_->net.Abort(Of(kRanks), [&] {
    return std::all_of(submits_.begin(), submits_.end(), [&](const v1::Submit& submit) {
      return HasTokens(submit, submit.max_tokens());
    });
  });
  EXPECT_EQ(aborted.message(), "aborted");
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
}

// An attempt that must wait for requests to end does not stop these requests.
TEST_F(AheadTest, ResumesStepsWhenKvDoesNotFit) {
  ASSERT_NO_FATAL_FAILURE(
      Begin(40 * kBlockBytes, std::chrono::milliseconds(0), std::chrono::hours(1)));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 300, 150);
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), 2))
        << world_->Failure()
        << (world_->sink.refused().empty() ? "" : world_->sink.refused()[0].DebugString());
  }
  world_->net.SetPause(true);
  LayoutSpec two = Uniform({world_->names[0], world_->names[1]}, kLayers, 2, 1, 1);
  ASSERT_NO_FATAL_FAILURE(Flip(two));
  uint64_t declined = 0;
  ASSERT_TRUE(world_->sink.WaitFinished(submits_.size()));
  for (const auto& rank : world_->ranks) declined += rank->engine->turn().declined();
  EXPECT_GT(declined, 0u) << "four requests do not fit where two ranks are";
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
}

TEST_F(AheadTest, AbortFreesCopiesAndNextAttemptStartsFresh) {
  ASSERT_NO_FATAL_FAILURE(Begin(4 << 20));
  for (uint32_t n = 0; n < kRanks; ++n) Submit(n, 100, 150);
  for (uint32_t n = 0; n < kRanks; ++n) {
    ASSERT_TRUE(world_->sink.WaitTokens("r" + std::to_string(n), 2));
  }
  (void)world_->net.Abort(Of(2), [&] { return HasTokens(submits_[0], 40); });
  ASSERT_NO_FATAL_FAILURE(Flip(Of(kRanks)));
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_GT(Carried().used, 0u);
  EXPECT_GT(Carried().ahead, Carried().used) << "what was copied for the first attempt is lost";
}

TEST_F(AheadTest, SurvivorsContinueAfterDeathDuringCopies) {
  ASSERT_NO_FATAL_FAILURE(Begin(4 << 20));
  world_->net.SetStaging({.looks = 5, .fails = 0});
  // No requests on the rank that dies.
  for (const uint32_t n : {0u, 1u, 2u, 4u, 5u, 6u}) Submit(n, 100, 150);
  for (const v1::Submit& submit : submits_) {
    ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), 2));
  }
  std::atomic<bool> over{false};
  std::thread attempt([&] { (void)world_->net.Abort(Of(kRanks), [&] { return over.load(); }); });
  EXPECT_TRUE(world_->sink.WaitTokens("r0", 30));
  world_->Kill(3);
  EXPECT_TRUE(world_->net.WaitStopped(world_->Names(3))) << world_->Failure();
  over = true;
  attempt.join();
  const Status repaired = world_->net.Repair(Uniform(world_->Names(3), kLayers, 3, 1, 1));
  ASSERT_TRUE(repaired.ok()) << repaired.message() << world_->Failure();
  ASSERT_TRUE(world_->sink.WaitFinished(submits_.size())) << world_->Failure();
  ExpectOracles(*world_, TestCheckpoint(), submits_);
  world_->Stop();
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(world_->ranks[r]->engine->reference().pages().Audit().ok());
  }
}

}  // namespace
}  // namespace tangram::engine
