// Homes that share ranks, step by step as in the engine, with the pages of every rank: idle blocks
// never prevent the admission of a request.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/scheduler/scheduler.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kBlock = 4, kHeads = 2;

class Homes {
 public:
  // One group of all, or one group per home; one layer.
  Homes(uint32_t ranks, bool together, uint32_t pages, bool caches) {
    kv::LayerGroups groups;
    if (together) {
      kv::Group& group = groups.emplace_back();
      for (uint32_t r = 0; r < ranks; ++r) group.ranks.push_back(r);
      for (uint32_t r = 0; r <= ranks; ++r) group.query_head_bounds.push_back(kHeads * r / ranks);
    } else {
      for (uint32_t r = 0; r < ranks; ++r) groups.push_back({{r}, {0, kHeads}});
    }
    held_ = HeldMap({groups}, {kHeads, kHeads, kBlock, 64}, ranks);
    SchedulerLimits limits;
    limits.block_tokens = kBlock;
    limits.max_batch_tokens = 64;
    limits.max_model_len = 100;
    limits.vocabulary = 50;
    limits.prefix_cache = caches;
    for (uint32_t r = 0; r < ranks; ++r) {
      homes_.emplace_back(limits);
      pages_.emplace_back(pages);
    }
    for (uint32_t r = 0; r < ranks; ++r) homes_[r].SetLayout(&held_, r);
  }

  void Submit(uint32_t home, std::vector<uint32_t> prompt, uint32_t tokens) {
    v1::Submit submit;
    submit.set_request(std::to_string(submitted_++));
    submit.mutable_prompt()->Add(prompt.begin(), prompt.end());
    submit.set_max_tokens(tokens);
    const auto refused = homes_[home].Submit("gw", submit, submitted_);
    EXPECT_FALSE(refused) << refused->ShortDebugString();
  }
  // A flip without a change of attention.
  void KeepAll() {
    for (uint32_t r = 0; r < homes_.size(); ++r) homes_[r].SetLayout(&held_, r);
  }
  void Cancel() {
    for (Scheduler& home : homes_) {
      size_t running = 0;
      const auto all = home.All(&running);
      if (!all.empty()) finished_ += home.Cancel(all[0]->id());
    }
  }

  void Step() {
    std::vector<std::vector<Chunk>> chunks;
    std::vector<HomeFigures> figures;
    std::vector<std::vector<uint32_t>> freed;
    for (uint32_t h = 0; h < homes_.size(); ++h) {
      chunks.push_back(homes_[h].Next());
      EXPECT_TRUE(homes_[h].TakeRefused().empty());
      figures.push_back(homes_[h].Figures());
      figures.back().total_pages = pages_[h].total();
      freed.push_back(homes_[h].TakeFreed());
    }
    for (uint32_t r = 0; r < homes_.size(); ++r) {
      homes_[r].SetFigures(figures);
      for (uint32_t h = 0; h < homes_.size(); ++h) {
        for (const uint32_t block : freed[h]) pages_[r].Drop(h, block);
      }
      for (uint32_t h = 0; h < homes_.size(); ++h) {
        if (held_.PagesPerBlock(h, r) == 0) continue;
        for (const Chunk& chunk : chunks[h]) {
          for (size_t b = 0; b < chunk.sequence->blocks.size(); ++b) {
            const uint32_t block = chunk.sequence->blocks[b];
            const bool computed = (b + 1) * kBlock <= chunk.start;
            EXPECT_TRUE(!computed || !pages_[r].Find(h, block).empty()) << "a stale block";
            const auto strips = pages_[r].Ensure(h, block, held_, r);
            ASSERT_TRUE(strips.ok()) << strips.status().message();
          }
        }
      }
      // Pages are free for the next admission, and no page is owned twice.
      EXPECT_EQ(pages_[r].Audit().message(), "");
    }
    for (uint32_t h = 0; h < homes_.size(); ++h) {
      for (const Chunk& chunk : chunks[h]) {
        const bool samples = chunk.Samples();
        homes_[h].Computed(chunk);
        if (!samples) continue;
        const auto token = static_cast<uint32_t>(chunk.sequence->tokens.size() % 50);
        if (homes_[h].Append(chunk.sequence, token) != v1::FINISH_UNSPECIFIED) ++finished_;
      }
    }
    ++step_;
  }
  // Runs until all requests have ended.
  void Run() {
    for (uint32_t i = 0; i < 20000 && finished_ < submitted_; ++i) {
      ASSERT_NO_FATAL_FAILURE(Step());
    }
    EXPECT_EQ(finished_, submitted_) << "somebody waits for good";
  }
  uint64_t reused() const {
    uint64_t out = 0;
    for (const Scheduler& home : homes_) {
      v1::RankTelemetry told;
      home.Measure(submitted_, &told);
      out += told.reused_tokens();
    }
    return out;
  }
  // At rest, after the freed blocks were reported: each page is free or idle.
  void ExpectAtRest() {
    Step();
    Step();
    for (uint32_t r = 0; r < homes_.size(); ++r) {
      EXPECT_EQ(pages_[r].free() + homes_[r].IdlePages(), pages_[r].total());
    }
  }

  uint64_t steps() const { return step_; }
  std::vector<Scheduler>& homes() { return homes_; }

 private:
  HeldMap held_;
  std::vector<Scheduler> homes_;
  std::vector<PageStore> pages_;
  uint64_t step_ = 0, submitted_ = 0, finished_ = 0;
};

class IdleRoomWalk : public ::testing::TestWithParam<uint32_t> {};

// Random chats in random worlds with few pages. With a cache every request is admitted as without
// one, up to the steps that the homes' reports take, and no rank lacks a page.
TEST_P(IdleRoomWalk, AdmitsSameRequestsAsWithoutCache) {
  std::mt19937 random(GetParam());
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const uint32_t ranks = 1 + draw(3);
  const bool together = draw(3) > 0;
  const uint32_t pages = 60 + draw(100);
  Homes with(ranks, together, pages, true), without(ranks, together, pages, false);
  std::vector<std::vector<uint32_t>> chats(3);
  for (auto& chat : chats) {
    for (uint32_t i = 4 + draw(16); i > 0; --i) chat.push_back(draw(50));
  }
  for (uint32_t round = 0; round < 60; ++round) {
    for (uint32_t n = draw(5); n > 0; --n) {
      std::vector<uint32_t> prompt = chats[draw(3)];
      const uint32_t own = draw(12), tokens = 1 + draw(30), home = draw(ranks);
      for (uint32_t i = 0; i < own; ++i) prompt.push_back(draw(3));
      with.Submit(home, prompt, tokens);
      without.Submit(home, prompt, tokens);
    }
    const uint32_t what = draw(8), steps = draw(20);
    for (Homes* homes : {&with, &without}) {
      if (what == 0) homes->KeepAll();
      if (what == 1) homes->Cancel();
      for (uint32_t i = 0; i < steps; ++i) ASSERT_NO_FATAL_FAILURE(homes->Step());
    }
  }
  ASSERT_NO_FATAL_FAILURE(with.Run());
  ASSERT_NO_FATAL_FAILURE(without.Run());
  EXPECT_LE(with.steps(), without.steps() * 11 / 10 + 20) << "a cache makes nobody wait";
  EXPECT_GT(with.reused(), without.reused());
  with.ExpectAtRest();
  without.ExpectAtRest();
}

INSTANTIATE_TEST_SUITE_P(Seeds, IdleRoomWalk, ::testing::Range(0u, 60u));

// A mode switch of many layers is a chain of flips, and after a flip no home knows the others'
// figures for one step. If homes took turns by the number of the step, a home whose turn always
// fell on such a step would wait for the end of the chain.
TEST(IdleRoomTest, AdmitsRequestsOfAllHomesBetweenFlips) {
  Homes homes(6, true, 600, true);
  for (uint32_t h = 0; h < 6; ++h) homes.Submit(h, {h, 1, 2}, 60);
  homes.KeepAll();
  ASSERT_NO_FATAL_FAILURE(homes.Step());
  ASSERT_NO_FATAL_FAILURE(homes.Step());
  for (uint32_t h = 0; h < 6; ++h) EXPECT_EQ(homes.homes()[h].running(), 1u) << "home " << h;
  homes.KeepAll();
  ASSERT_NO_FATAL_FAILURE(homes.Run());
}

// The home with the idle blocks is not the home that needs the room.
TEST(IdleRoomTest, EvictsIdleBlocksForRequestOfAnotherHome) {
  Homes homes(2, true, 20, true);  // 1 page a block at each rank
  for (uint32_t n = 0; n < 5; ++n) {
    homes.Submit(0, std::vector<uint32_t>(13, n), 3);
    ASSERT_NO_FATAL_FAILURE(homes.Run());
  }
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 14u)
      << "three blocks of each, but for one that the last one's reservation took";
  homes.Submit(1, std::vector<uint32_t>(41, 9), 19);  // 15 blocks: all but the headroom
  ASSERT_NO_FATAL_FAILURE(homes.Run());
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 0u);
  EXPECT_EQ(homes.homes()[1].idle_blocks(), 14u);
  homes.ExpectAtRest();
}

// Idle blocks that a request reuses are reserved from then on: they do not count twice.
TEST(IdleRoomTest, CountsReusedIdleBlocksOnce) {
  Homes homes(1, false, 80, true);  // 30 blocks without the headroom
  homes.Submit(0, std::vector<uint32_t>(41, 1), 3);
  ASSERT_NO_FATAL_FAILURE(homes.Run());
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 10u);
  homes.Submit(0, std::vector<uint32_t>(1, 2), 83);  // 21 blocks
  homes.Submit(0, std::vector<uint32_t>(41, 1), 3);  // 11, ten of them idle
  ASSERT_NO_FATAL_FAILURE(homes.Step());
  EXPECT_EQ(homes.homes()[0].running(), 1u) << "32 blocks of 30";
  ASSERT_NO_FATAL_FAILURE(homes.Run());
  homes.ExpectAtRest();
}

// A home that needs only its own room does not wait for other homes.
TEST(IdleRoomTest, EvictsOwnIdleBlocksImmediately) {
  Homes homes(1, false, 54, true);  // 27 blocks
  for (uint32_t n = 0; n < 5; ++n) {
    homes.Submit(0, std::vector<uint32_t>(17, n), 3);
    ASSERT_NO_FATAL_FAILURE(homes.Run());
  }
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 19u);
  homes.Submit(0, std::vector<uint32_t>(61, 9), 1);  // 16 blocks
  const uint64_t before = homes.steps();
  ASSERT_NO_FATAL_FAILURE(homes.Run());
  EXPECT_EQ(homes.steps(), before + 1);
}

// A block that is used again is no longer idle, whatever its age.
TEST(IdleRoomTest, DoesNotEvictBlocksInUse) {
  Homes homes(1, false, 54, true);
  for (uint32_t n = 0; n < 4; ++n) {
    homes.Submit(0, std::vector<uint32_t>(17, n), 3);
    ASSERT_NO_FATAL_FAILURE(homes.Run());
  }
  homes.Submit(0, std::vector<uint32_t>(17, 0), 30);
  ASSERT_NO_FATAL_FAILURE(homes.Step());
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 8u) << "12 reserved, of 20";
  homes.Submit(0, std::vector<uint32_t>(17, 9), 14);  // 8 more
  ASSERT_NO_FATAL_FAILURE(homes.Run());
  homes.ExpectAtRest();
}

// The least recently used blocks are evicted first, and an ended request leaves blocks for the next
// one.
TEST(IdleRoomTest, EvictsLeastRecentlyUsedFirst) {
  Homes homes(1, false, 54, true);  // 20 blocks without the headroom
  const auto ask = [&](uint32_t kind) {
    const uint64_t before = homes.reused();
    homes.Submit(0, std::vector<uint32_t>(17, kind), 3);
    EXPECT_FALSE(::testing::Test::HasFatalFailure());
    homes.Run();
    return homes.reused() - before;
  };
  for (uint32_t kind = 0; kind < 4; ++kind) EXPECT_EQ(ask(kind), 0u);
  EXPECT_EQ(homes.homes()[0].idle_blocks(), 16u) << "four of each";
  EXPECT_EQ(ask(0), 16u);
  EXPECT_EQ(ask(4), 0u) << "its fifth block takes that of another";
  EXPECT_EQ(ask(0), 16u) << "used before";
  EXPECT_EQ(ask(1), 12u) << "its last block went";
  homes.ExpectAtRest();
}

}  // namespace
}  // namespace tangram::engine
