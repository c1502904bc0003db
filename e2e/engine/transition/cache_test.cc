// Prefixes that outlive their requests, in worlds of engines that flip: reuse changes no bit, keeps
// no page forever and blocks no flip.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

#include "e2e/engine/testing/checkpoint_files.h"
#include "e2e/engine/testing/oracles.h"

namespace tangram::engine {
namespace {

using testing::LayoutSpec;
using testing::MakeRequest;
using testing::ModelSpec;
using testing::TestWorld;
using testing::Uniform;

constexpr uint32_t kLayers = 3, kBlock = 16, kPrefix = 4 * kBlock;
constexpr uint32_t kBlockBytes = 12 * 1024;  // 3 layers * 2 KV heads * 2 KiB

const model::Checkpoint& TestCheckpoint() {
  static const std::unique_ptr<model::Checkpoint> checkpoint = [] {
    const ModelSpec spec;
    const std::filesystem::path dir =
        std::filesystem::temp_directory_path() / ("tangram-cache-test-" + std::to_string(getpid()));
    testing::WriteCheckpoint(dir, spec, 13);
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

// A request whose prompt begins with a prefix that other requests share.
v1::Submit Chat(uint32_t n, uint32_t prefix, uint32_t own, uint32_t tokens) {
  v1::Submit out = MakeRequest(n, own, tokens);
  const std::vector<uint32_t> end(out.prompt().begin(), out.prompt().end());
  std::mt19937 random(1000 + prefix);
  out.clear_prompt();
  for (uint32_t i = 0; i < kPrefix; ++i) out.add_prompt(random() % 97);
  out.mutable_prompt()->Add(end.begin(), end.end());
  return out;
}

class CacheTest : public ::testing::Test {
 protected:
  void Begin(uint32_t ranks, uint32_t kv_bytes = 4 << 20, bool caches = true) {
    TestWorld::Options options{.members = ranks, .kv_bytes = kv_bytes};
    options.engine.reference.limits.prefix_cache = caches;
    options.engine.turn.kv_ahead = kv_ahead_;
    world_ = std::make_unique<TestWorld>(&TestCheckpoint(), options);
    submits_.clear();
    next_ = 0;
    ASSERT_EQ(world_->Failure(), "");
    Flip(Uniform(world_->names, kLayers, ranks, 1, 1));
  }
  void Flip(const LayoutSpec& spec) {
    const Status status = world_->net.Flip(spec, 60);
    ASSERT_TRUE(status.ok()) << status.message() << world_->Failure();
  }
  void Submit(uint32_t home, uint32_t prefix, uint32_t own = 20, uint32_t tokens = 8) {
    submits_.push_back(Chat(next_++, prefix, own, tokens));
    submits_.back().set_cache_salt(salt_);
    world_->Submit(home, submits_.back());
  }
  void WaitAll() {
    for (const v1::Submit& submit : submits_) {
      ASSERT_TRUE(world_->sink.WaitTokens(submit.request(), submit.max_tokens()))
          << world_->Failure();
    }
  }
  // All tokens are the oracle's, and all pages that are not free are idle.
  void ExpectNothingHappened() {
    ASSERT_NO_FATAL_FAILURE(WaitAll());
    testing::ExpectOracles(*world_, TestCheckpoint(), submits_);
    testing::ExpectNothingHeld(*world_);
  }
  // Reused prompt tokens; read it after the world has stopped.
  uint64_t Reused() const {
    uint64_t out = 0;
    for (const auto& rank : world_->ranks) out += rank->engine->reference().told().reused_tokens();
    return out;
  }

  // One of two homes is full of idle blocks, up to the limit: 30 of 40. A request at the other home
  // has 22.
  void Fill() {
    Begin(2, 40 * kBlockBytes);
    for (uint32_t i = 0; i < 6; ++i) {
      Submit(0, i, 20, 8);
      WaitAll();
    }
    Submit(1, 100, 280, 100);
    ASSERT_TRUE(world_->sink.WaitTokens(submits_.back().request(), 2)) << world_->Failure();
  }

  std::chrono::milliseconds kv_ahead_{-1};
  std::string salt_;  // of new requests
  std::unique_ptr<TestWorld> world_;
  std::vector<v1::Submit> submits_;
  uint32_t next_ = 0;
};

// Requests end, and only then others with the same beginning start: in the same layout, after a
// switch, and after the switch back. KV migrates in the flip, or ahead of it.
TEST_F(CacheTest, SurvivesSwitchFromExpertToTensorAndBack) {
  for (const int ahead_ms : {-1, 20000}) {
    kv_ahead_ = std::chrono::milliseconds(ahead_ms);
    ASSERT_NO_FATAL_FAILURE(Begin(4));
    const auto all = [&] {
      for (uint32_t home = 0; home < 4; ++home) Submit(home, home);
      WaitAll();
    };
    ASSERT_NO_FATAL_FAILURE(all());
    ASSERT_NO_FATAL_FAILURE(all());  // reuses the KV on the same rank
    ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, 4, 4)));
    ASSERT_NO_FATAL_FAILURE(all());
    ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, 2, 2)));
    ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, 1, 1)));
    ASSERT_NO_FATAL_FAILURE(all());
    ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
    EXPECT_EQ(Reused(), 3u * 4 * kPrefix);
    uint64_t used = 0;
    for (const auto& rank : world_->ranks) used += rank->engine->reference().carried().used;
    EXPECT_EQ(used > 0, ahead_ms > 0) << "idle blocks are copied ahead as others are";
  }
}

// Live requests share a part of the idle blocks, and are in the middle of their answers.
TEST_F(CacheTest, StaysCorrectWhileRequestsMigrate) {
  ASSERT_NO_FATAL_FAILURE(Begin(4));
  for (uint32_t home = 0; home < 4; ++home) {
    Submit(home, home, 40, 4);
    Submit(home, home, 50, 4);
  }
  ASSERT_NO_FATAL_FAILURE(WaitAll());
  for (uint32_t home = 0; home < 4; ++home) Submit(home, home, 10, 350);
  for (uint32_t n = 8; n < 12; ++n) {
    ASSERT_TRUE(world_->sink.WaitTokens("r" + std::to_string(n), 3)) << world_->Failure();
  }
  for (const uint32_t t : {4u, 1u, 2u}) {
    ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, t, t)));
    for (uint32_t home = 0; home < 4; ++home) Submit(home, home, 40 + home, 4);
  }
  for (uint32_t n = 8; n < 12; ++n) {
    EXPECT_LT(world_->sink.Stream("r" + std::to_string(n)).size(), 350u) << "the flips find it";
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_GE(Reused(), 4u * 4 * kPrefix);
}

// The idle blocks of a leaving home migrate to a staying one, once.
TEST_F(CacheTest, MigratesFromLeavingHome) {
  ASSERT_NO_FATAL_FAILURE(Begin(3));
  for (uint32_t home = 0; home < 3; ++home) Submit(home, home);
  ASSERT_NO_FATAL_FAILURE(WaitAll());
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 2, 1, 1)));
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->Names(2), kLayers, 2, 1, 1)));
  for (uint32_t home = 0; home < 2; ++home) Submit(home, 2);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_EQ(Reused(), kPrefix) << "one of two finds it";
}

// Cached blocks belong to their salt in the next layout, too.
TEST_F(CacheTest, SeparatesSaltsThroughFlips) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  salt_ = "mine";
  for (uint32_t home = 0; home < 2; ++home) Submit(home, home);
  ASSERT_NO_FATAL_FAILURE(WaitAll());
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 2, 2, 2)));
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 2, 1, 1)));
  for (const char* salt : {"", "theirs"}) {
    salt_ = salt;
    for (uint32_t home = 0; home < 2; ++home) Submit(home, 0), Submit(home, 1);
  }
  ASSERT_NO_FATAL_FAILURE(WaitAll());
  salt_ = "mine";
  for (uint32_t home = 0; home < 2; ++home) Submit(home, 0), Submit(home, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_EQ(Reused(), 2 * kPrefix) << "each of the two prefixes is at one home, and of one salt";
}

// A chat cached at two homes becomes one when the homes become one.
TEST_F(CacheTest, MergesEqualTokensOfTwoHomes) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  Submit(0, 7, 1);
  Submit(1, 7, 1);
  ASSERT_NO_FATAL_FAILURE(WaitAll());
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 1, 1, 1)));
  Submit(0, 7);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_EQ(Reused(), kPrefix);
  EXPECT_EQ(world_->ranks[0]->engine->reference().scheduler().idle_blocks(), 5u)
      << "four that are shared, and the last one's own";
}

// Every page is in use or idle, and both homes become one: blocks without room are dropped, the
// last used ones migrate, and the flip is not declined.
TEST_F(CacheTest, DropsBlocksWithoutRoomInsteadOfDecliningFlip) {
  ASSERT_NO_FATAL_FAILURE(Begin(2, 40 * kBlockBytes));
  for (uint32_t i = 0; i < 24; ++i) {
    Submit(i % 2, i, 20, 8);
    ASSERT_NO_FATAL_FAILURE(WaitAll());
  }
  Submit(0, 100, 20, 150);  // reserves 15 blocks of 40: five chains of five have room
  ASSERT_TRUE(world_->sink.WaitTokens("r24", 2)) << world_->Failure();
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 1, 1, 1)));
  EXPECT_LT(world_->sink.Stream("r24").size(), 150u);
  Submit(0, 23);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_EQ(world_->ranks[0]->engine->turn().declined(), 0u);
  EXPECT_EQ(Reused(), kPrefix) << "of the last one at the home that is none any more";
}

// KV that migrates to a rank full of idle pages gets their room, at the first attempt.
TEST_F(CacheTest, EvictsIdlePagesForMigratingKv) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 1, 1, 1)));
  EXPECT_LT(world_->sink.Stream(submits_.back().request()).size(), 100u);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_EQ(world_->ranks[0]->engine->turn().declined(), 0u);
}

// The pages are allocated to migrating KV, and the fetch fails repeatedly while steps continue in
// the old layout: the pages' previous content is no longer found.
TEST_F(CacheTest, DoesNotFindBlocksEvictedByDeclinedFlip) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  world_->net.SetStaging({.flips_fail = 30});
  std::thread flip([&] {
    const Status status = world_->net.Flip(Uniform(world_->names, kLayers, 1, 1, 1), 60);
    EXPECT_TRUE(status.ok()) << status.message() << world_->Failure();
  });
  // Some steps later, or at the end of the answer: this thread may be late.
  const size_t begun = world_->sink.Stream(submits_.back().request()).size();
  EXPECT_TRUE(world_->sink.WaitTokens(submits_.back().request(),
                                      std::min<size_t>(begun + 5, submits_.back().max_tokens())));
  Submit(0, 5);  // of six chains the last used one migrates first
  Submit(0, 0);
  flip.join();
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_GE(world_->ranks[0]->engine->turn().declined(), 20u);
}

// Survivors with unshared KV keep their idle blocks; a survivor that shares heads loses all of
// them.
TEST_F(CacheTest, FindsOnlyValidBlocksAfterDeath) {
  for (const uint32_t t : {1u, 3u}) {
    ASSERT_NO_FATAL_FAILURE(Begin(3));
    ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 3, 1, t)));
    for (uint32_t home = 0; home < 2; ++home) Submit(home, home);
    ASSERT_NO_FATAL_FAILURE(WaitAll());
    world_->Kill(2);
    const std::vector<std::string> rest = world_->Names(2);
    ASSERT_TRUE(world_->net.WaitStopped(rest)) << world_->Failure();
    const Status repaired = world_->net.Repair(Uniform(rest, kLayers, 2, 1, t == 1 ? 1 : 2));
    ASSERT_TRUE(repaired.ok()) << repaired.message() << world_->Failure();
    for (uint32_t home = 0; home < 2; ++home) Submit(home, home);
    ASSERT_NO_FATAL_FAILURE(WaitAll());
    testing::ExpectOracles(*world_, TestCheckpoint(), submits_);
    world_->Stop();
    EXPECT_EQ(Reused(), t == 1 ? 2u * kPrefix : 0u);
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(world_->ranks[r]->engine->reference().pages().Audit().message(), "");
    }
  }
}

// Chats start, continue and are cancelled with few pages, while the world flips, grows, shrinks,
// aborts attempts, and copies fail.
class CacheWalk : public CacheTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(CacheWalk, ChangesNoBit) {
  std::mt19937 random(GetParam());
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  kv_ahead_ = std::chrono::milliseconds(draw(3) * 200) - std::chrono::milliseconds(1);
  ASSERT_NO_FATAL_FAILURE(Begin(4, (40 + draw(60)) * kBlockBytes));
  world_->net.SetStaging({.looks = 1 + draw(4), .fails = draw(3) == 0 ? 2 + draw(3) : 0});
  uint32_t homes = 4;
  for (uint32_t round = 0; round < 8; ++round) {
    std::vector<std::string> cancelled;
    for (uint32_t i = 0; i < 6; ++i) Submit(draw(homes), draw(5), 1 + draw(60), 2 + draw(60));
    for (uint32_t i = 0; i < 2; ++i) {
      const v1::Submit submit = Chat(next_++, draw(5), 1 + draw(60), 200);
      world_->Submit(draw(homes), submit);
      cancelled.push_back(submit.request());
    }
    if (draw(2) == 0) {
      ASSERT_NO_FATAL_FAILURE(WaitAll());
    } else {
      ASSERT_TRUE(world_->sink.WaitTokens(submits_.back().request(), 1)) << world_->Failure();
    }
    const uint32_t serving = 2 + draw(3), t = std::min(serving, 1u << draw(3));
    const LayoutSpec target = Uniform(world_->names, kLayers, serving, 1, t);
    if (draw(4) == 0) {
      uint32_t looks = 1 + draw(60);
      (void)world_->net.Abort(target, [&] { return --looks == 0; });
    } else {
      for (const std::string& request : cancelled) world_->Cancel(request);
      ASSERT_NO_FATAL_FAILURE(Flip(target));
      homes = serving;
    }
    for (const std::string& request : cancelled) world_->Cancel(request);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
  EXPECT_GT(Reused(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheWalk, ::testing::Range(0u, 16u));

// Turns of chats at their homes, with a switch after every second turn: the savings of a cache.
TEST_F(CacheTest, ChatsAcrossSwitchesComputeTheirPromptsOnce) {
  constexpr uint32_t kChats = 8, kTurns = 6;
  uint64_t reused[2] = {}, prompts = 0;
  std::vector<std::vector<uint32_t>> answers[2];
  for (const bool caches : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Begin(4, 8 << 20, caches));
    std::vector<v1::Submit> chats;
    prompts = 0;
    for (uint32_t n = 0; n < kChats; ++n) chats.push_back(Chat(n, n % 2, 20, 12));
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      if (turn == 2) ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, 4, 4)));
      if (turn == 4) ASSERT_NO_FATAL_FAILURE(Flip(Uniform(world_->names, kLayers, 4, 1, 1)));
      for (uint32_t n = 0; n < kChats; ++n) {
        v1::Submit& chat = chats[n];
        chat.set_request("c" + std::to_string(n) + "t" + std::to_string(turn));
        prompts += chat.prompt_size();
        submits_.push_back(chat);
        world_->Submit(n % 4, chat);
      }
      ASSERT_NO_FATAL_FAILURE(WaitAll());
      for (uint32_t n = 0; n < kChats; ++n) {
        std::vector<uint32_t>& answer = answers[caches].emplace_back();
        for (const v1::Token& token : world_->sink.Stream(chats[n].request())) {
          answer.push_back(token.token());
          chats[n].add_prompt(token.token());
        }
        for (uint32_t i = 0; i < 9; ++i) chats[n].add_prompt((n * 31 + turn * 7 + i) % 97);
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNothingHappened());
    reused[caches] = Reused();
  }
  EXPECT_EQ(answers[0], answers[1]);
  std::cout << "of " << prompts << " prompt tokens " << reused[0] << " were found without a cache, "
            << reused[1] << " with one\n";
  EXPECT_GT(reused[1] * 100, prompts * 75);
  EXPECT_LT(reused[0] * 100, prompts * 25);
}

}  // namespace
}  // namespace tangram::engine
