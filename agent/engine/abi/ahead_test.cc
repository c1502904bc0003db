// KV ahead of a flip in an engine's own blocks: reports, promises, copies and their use. A block
// that has changed is never used.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "agent/engine/abi/testing/fakes.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kLayers = 3, kTokens = 16, kBlocks = 64;
constexpr uint32_t kDrafts = 2;                          // layers of the second set
constexpr uint64_t kBlockBytes = 256, kDraftBytes = 32;  // of a block in a layer
constexpr uint64_t kWhole = kLayers * kBlockBytes + kDrafts * kDraftBytes;  // of a block
constexpr uint64_t kBytes = kBlocks * kWhole;
const kv::Shape kShape{4, 2, kTokens, 8};

BlockLayout LayoutOf(uint32_t free) {
  constexpr uint64_t kBehind = kLayers * kBlocks * kBlockBytes;
  return {{{kLayers, 0, kBlocks * kBlockBytes, kBlockBytes, kBlockBytes},
           {kDrafts, kBehind, kBlocks * kDraftBytes, kDraftBytes, kDraftBytes}},
          kBlocks,
          free};
}

BlockRequest Running(const std::string& name, uint32_t computed, std::vector<uint32_t> blocks,
                     uint32_t generation = 0) {
  BlockRequest out;
  out.request = name;
  out.running = true;
  out.computed = computed;
  out.reserved = 200;
  out.blocks = std::move(blocks);
  out.generation = generation;
  return out;
}

Side Data(std::vector<std::string> members) { return DataParallel(std::move(members), kLayers); }

// Rank 0 leaves; this is rank 1 of two, and the only one of the target.
class BlocksAhead : public ::testing::Test {
 protected:
  BlocksAhead() { incoming_.Stage(1, 0); }
  // A step in which rank 0 has these requests. `here`: the attempt that this rank has by then.
  void Step(const std::vector<BlockRequest>& running, uint64_t attempt = 7, uint64_t here = 0) {
    BlockNews theirs = teller_.Tell(running, kTokens), mine;
    theirs.attempt = attempt;
    mine.attempt = here == 0 ? attempt : here;
    theirs.kv = LayoutOf(20);
    mine.kv = LayoutOf(static_cast<uint32_t>(room_.free.size()) + incoming_.blocks());
    std::vector<BlockNews> news;
    for (const BlockNews* n : {&theirs, &mine}) {
      auto came = BlockNews::Decode(n->Encode(), kLayers, kBytes);
      ASSERT_TRUE(came.ok()) << came.status().message();
      news.push_back(std::move(*came));
    }
    board_.Hear(std::move(news));
    if (board_.All(attempt)) board_.Promise(kShape, kLayers, Data({"p", "q"}), Data({"q"}));
    incoming_.TakeUp(nullptr);
    incoming_.Advance(board_);
  }
  // The flip, in which rank 0 has this request: the blocks of it that are here.
  Incoming::Ready Flip(BlockRequest request) {
    request.told = teller_.GenerationOf(request.request, request.generation);
    EXPECT_TRUE(incoming_.Settle({{request.request, {0, &request}}}, waits_).ok());
    return incoming_.Take(request.request);
  }
  size_t Here(const Incoming::Ready& ready) {
    return static_cast<size_t>(std::ranges::count(ready.here, true));
  }
  void ExpectAllFree() {
    EXPECT_EQ(room_.free.size(), kBlocks);
    EXPECT_EQ(incoming_.blocks(), 0u);
  }

  FakeWorld world_;
  FakeRoom room_{LayoutOf(kBlocks)};
  Waits waits_;
  Teller teller_;
  Board board_;
  Incoming incoming_{&room_, &world_};
};

TEST_F(BlocksAhead, CopiesFullBlocksAndLeavesRestToFlip) {
  Step({Running("x", 40, {5, 6, 7})});
  Step({Running("x", 49, {5, 6, 7, 9})});
  Step({Running("x", 50, {5, 6, 7, 9})});
  const auto ready = Flip(Running("x", 51, {5, 6, 7, 9}));
  EXPECT_EQ(Here(ready), 3u) << "the fourth has 3 positions of 16";
  EXPECT_EQ(ready.mine, room_.reserved["x"]);
}

// The agent defers copies so that steps are no longer than allowed: no failure, however often.
TEST_F(BlocksAhead, RetriesDeferredCopyWithoutCountingFailure) {
  world_.later = true;
  for (int i = 0; i < 20; ++i) Step({Running("x", 40, {5, 6, 7})});
  EXPECT_EQ(incoming_.counts().failed, 0u);
  EXPECT_GE(incoming_.counts().put_off, 19u);
  world_.later = false;
  Step({Running("x", 40, {5, 6, 7})});
  Step({Running("x", 40, {5, 6, 7})});
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 2u);
}

// A block is freed, written by another request, and then the same request's again: only the
// generation reveals it.
TEST_F(BlocksAhead, DoesNotUseBlockOfAnotherGeneration) {
  world_.lands = false;
  Step({Running("x", 40, {5, 6, 7}, UINT32_MAX)});
  EXPECT_FALSE(world_.under_way.empty());
  const auto ready = Flip(Running("x", 40, {5, 6, 7}, 0));  // it wraps
  EXPECT_EQ(Here(ready), 0u);
  ExpectAllFree();
}

TEST_F(BlocksAhead, CopiesBlockAgainWhenGenerationChanges) {
  Step({Running("x", 40, {5, 6, 7}, 1)});
  Step({Running("x", 40, {5, 6, 7}, 1)});
  Step({Running("x", 40, {5, 6, 7}, 2)});
  Step({Running("x", 40, {5, 6, 7}, 2)});
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}, 2))), 2u);
  EXPECT_EQ(incoming_.counts().in_vain, 2 * kWhole);
}

TEST_F(BlocksAhead, DropsCopiesWhenRequestNameIsReused) {
  Step({Running("x", 40, {5, 6, 7})});
  Step({Running("x", 40, {5, 6, 7})});
  teller_.Renewed("x");
  (void)teller_.Tell({Running("x", 40, {5, 6, 7})}, kTokens);
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 0u);
  ExpectAllFree();
}

TEST_F(BlocksAhead, FreesBlocksAfterCopyWhenRequestEnds) {
  world_.lands = false;
  Step({Running("x", 40, {5, 6, 7})});
  Step({});
  EXPECT_EQ(room_.free.size(), kBlocks - 2) << "the agent still writes to them";
  world_.lands = true;
  Step({});
  ExpectAllFree();
  EXPECT_EQ(incoming_.counts().in_vain, 2 * kWhole);
}

TEST_F(BlocksAhead, FreesBlocksWhenAttemptEndsAndNextStartsFresh) {
  world_.lands = false;
  Step({Running("x", 40, {5, 6, 7})});
  incoming_.Unstage();
  EXPECT_EQ(room_.free.size(), kBlocks - 2);
  board_.Forget(7);
  teller_.Clear();
  world_.lands = true;
  incoming_.TakeUp(nullptr);
  ExpectAllFree();
  incoming_.Stage(1, 0);
  Step({Running("x", 40, {5, 6, 7})}, 8);
  Step({Running("x", 40, {5, 6, 7})}, 8);
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 2u);
}

TEST_F(BlocksAhead, LeavesBlocksToFlipAndCountsThemWithoutRoom) {
  while (room_.free.size() > kBlocks / 8 + 1) room_.free.erase(room_.free.begin());
  Step({Running("x", 40, {5, 6, 7})});
  EXPECT_EQ(incoming_.counts().no_room, 1u);
  EXPECT_TRUE(world_.under_way.empty());
  EXPECT_FALSE(incoming_.behind());
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 0u);
}

// The engine's own requests need the blocks.
TEST_F(BlocksAhead, ReleasesReservedBlocksWhenEngineIsShort) {
  Step({Running("x", 40, {5, 6, 7})});
  Step({Running("x", 40, {5, 6, 7})});
  EXPECT_EQ(incoming_.blocks(), 2u);
  while (room_.free.size() > 2) room_.free.erase(room_.free.begin());
  Step({Running("x", 40, {5, 6, 7})});
  EXPECT_EQ(incoming_.blocks(), 0u);
  EXPECT_EQ(room_.free.size(), 4u);
  EXPECT_FALSE(incoming_.behind());
}

// The other rank learns of the next attempt first; the end of the previous one is never reported.
TEST_F(BlocksAhead, LeavesNothingWhenAttemptIsReplaced) {
  world_.lands = false;
  Step({Running("x", 40, {5, 6, 7})});
  ASSERT_EQ(room_.free.size(), kBlocks - 2);
  teller_.Clear();
  Step({Running("x", 40, {5, 6, 7})}, 8, 7);
  EXPECT_FALSE(board_.All(7));
  EXPECT_FALSE(board_.All(8));
  incoming_.Stage(1, 0);
  Step({Running("x", 40, {5, 6, 7})}, 8);
  EXPECT_EQ(room_.free.size(), kBlocks - 2) << "the agent writes to those of the attempt before";
  world_.lands = true;
  Step({Running("x", 40, {5, 6, 7})}, 8);
  EXPECT_EQ(incoming_.counts().in_vain, 2 * kWhole);
  Step({Running("x", 40, {5, 6, 7})}, 8);
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 2u);
  EXPECT_EQ(incoming_.blocks(), 0u);
}

// A repair enters an epoch while the agent copies from a dead rank: its pull fails, then or later.
TEST_F(BlocksAhead, LeavesNothingWhenRankDiesDuringCopies) {
  for (const bool late : {false, true}) {
    world_.lands = false;
    Step({Running("x", 40, {5, 6, 7})});
    ASSERT_FALSE(world_.under_way.empty());
    if (!late) {
      world_.lands = world_.fails = true;
      incoming_.TakeUp(nullptr);
    }
    board_.Forget(7);  // as Called::EndStaging
    teller_.Clear();
    incoming_.Unstage();
    board_.Clear();
    world_.lands = world_.fails = true;
    incoming_.TakeUp(nullptr);
    ExpectAllFree();
    world_.fails = false;
    incoming_.Stage(1, 0);
  }
  Step({Running("x", 40, {5, 6, 7})}, 9);
  Step({Running("x", 40, {5, 6, 7})}, 9);
  EXPECT_EQ(Here(Flip(Running("x", 40, {5, 6, 7}))), 2u);
}

// A home whose requests arrive, grow, are preempted and return under their names, in reused blocks,
// while generations wrap; memory holds what was really written.
class BlocksAheadWalk : public BlocksAhead, public ::testing::WithParamInterface<uint32_t> {
 protected:
  using Memory = std::vector<uint64_t>;  // by blocks: the number of the last write in each set
  static constexpr uint32_t kMost = 6;   // blocks of a request

  struct Here {
    bool running = false;
    uint32_t computed = 0, generation = 0;
    std::vector<uint32_t> blocks;
  };

  BlocksAheadWalk() : theirs_(2 * kBlocks), mine_(2 * kBlocks) {
    for (uint32_t b = 0; b < 12; ++b) free_.insert(b);  // few, so that they are reused
    world_.copy = [this](std::span<const tg_kv_move> moves) {
      for (const tg_kv_move& move : moves) Land(move);
    };
  }
  uint32_t Draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // Block of set 0 and of set 1 are apart in memory: each move is of whole blocks of one layer.
  void Land(const tg_kv_move& move) {
    constexpr uint64_t kBehind = kLayers * kBlocks * kBlockBytes;
    const bool draft = move.source_offset >= kBehind;
    const uint64_t size = draft ? kDraftBytes : kBlockBytes, base = draft ? kBehind : 0;
    ASSERT_EQ(draft, move.target_offset >= kBehind);
    for (uint64_t at = 0; at < move.length; at += size) {
      const uint64_t from = (move.source_offset + at - base) / size % kBlocks;
      const uint64_t to = (move.target_offset + at - base) / size % kBlocks;
      mine_[2 * to + draft] = theirs_[2 * from + draft];
    }
  }
  void Write(uint32_t block) { theirs_[2 * block] = theirs_[2 * block + 1] = ++writes_; }
  void PutOff(Here* request) {
    free_.insert(request->blocks.begin(), request->blocks.end());
    const uint32_t next = request->generation + 1;
    *request = {};
    request->generation = next;
  }
  void Grow(Here* request) {
    const uint32_t before = request->computed;
    request->running = true;
    request->computed = std::min(kMost * kTokens, before + 1 + Draw(40));
    for (uint32_t b = before / kTokens; b * kTokens < request->computed; ++b) {
      if (b == request->blocks.size()) {
        if (free_.empty()) return PutOff(request);
        const auto block = std::next(free_.begin(), Draw(static_cast<uint32_t>(free_.size())));
        request->blocks.push_back(*block);
        free_.erase(block);
      }
      if (before < (b + 1) * kTokens) Write(request->blocks[b]);
    }
  }
  void Something() {
    const std::string name(1, static_cast<char>('a' + Draw(3)));
    Here& request = requests_[name];
    switch (Draw(8)) {
      case 0:
        if (request.running) PutOff(&request);
        break;
      case 1: {  // it ends, and another of its name arrives
        free_.insert(request.blocks.begin(), request.blocks.end());
        teller_.Renewed(name);
        constexpr uint32_t kFrom[] = {0, 1, UINT32_MAX, UINT32_MAX - 1, 1u << 31};
        request = {};
        request.generation = kFrom[Draw(5)];
        break;
      }
      case 2:
        if (!free_.empty()) Write(*free_.begin());
        break;
      default:
        Grow(&request);
    }
  }
  std::vector<BlockRequest> All() const {
    std::vector<BlockRequest> out;
    for (const auto& [name, r] : requests_) {
      if (r.running) out.push_back(Running(name, r.computed, r.blocks, r.generation));
    }
    return out;
  }
  // The copies here equal the blocks of their home.
  void Check() {
    std::vector<BlockRequest> all = All();
    std::map<std::string, Incoming::Comes> comes;
    for (BlockRequest& request : all) {
      request.told = teller_.GenerationOf(request.request, request.generation);
      comes[request.request] = {0, &request};
    }
    world_.lands = true;
    EXPECT_TRUE(incoming_.Settle(comes, waits_).ok());
    for (const BlockRequest& request : all) {
      const Incoming::Ready ready = incoming_.Take(request.request);
      for (size_t b = 0; b < ready.here.size(); ++b) {
        if (!ready.here[b]) continue;
        ++taken_;
        for (const int set : {0, 1}) {
          EXPECT_EQ(mine_[2 * ready.mine[b] + set], theirs_[2 * request.blocks[b] + set])
              << "block " << b << " of " << request.request << ", set " << set;
        }
      }
      for (const uint32_t block : room_.reserved[request.request]) room_.free.insert(block);
      room_.reserved.erase(request.request);
    }
    ExpectAllFree();
  }

  std::mt19937 random_{GetParam()};
  Memory theirs_, mine_;
  std::map<std::string, Here> requests_;
  std::set<uint32_t> free_;
  uint64_t writes_ = 0;
  uint64_t taken_ = 0;
};

// Starts shortly before each value at which a counter of the teller may wrap.
TEST_P(BlocksAheadWalk, UsesOnlyBlocksEqualToThoseOfHome) {
  uint64_t attempt = 7;
  for (const uint32_t turn : {0u, (1u << 16) - 3, (1u << 31) - 3, UINT32_MAX - 2}) {
    for (int flip = 0; flip < 40; ++flip, ++attempt) {
      teller_ = Teller(turn);
      incoming_.Stage(1, 0);
      for (uint32_t step = 1 + Draw(8); step > 0; --step) {
        for (uint32_t i = Draw(4); i > 0; --i) Something();
        world_.lands = Draw(2) == 0;
        Step(All(), attempt);
      }
      for (uint32_t i = Draw(4); i > 0; --i) Something();  // in the same step as the flip
      ASSERT_NO_FATAL_FAILURE(Check());
      incoming_.Unstage();
      board_.Clear();
    }
  }
  EXPECT_GT(taken_, 50u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BlocksAheadWalk, ::testing::Range(0u, 16u));

TEST(BlockNews, RejectsInconsistentReport) {
  BlockNews news;
  news.attempt = 3;
  news.kv = LayoutOf(4);
  news.ended = {"y"};
  news.grown = {{"x", 9, 40, 200, 0, {5, 6}}};
  const Bytes sound = news.Encode();
  ASSERT_TRUE(BlockNews::Decode(sound, kLayers, kBytes).ok());
  for (size_t size = 1; size < sound.size(); ++size) {
    const Bytes part(sound.begin(), sound.begin() + static_cast<long>(size));
    EXPECT_FALSE(BlockNews::Decode(part, kLayers, kBytes).ok()) << size;
  }
  news.grown[0].blocks = {kBlocks};
  EXPECT_FALSE(BlockNews::Decode(news.Encode(), kLayers, kBytes).ok());
  news.grown.clear();
  news.kv.free_blocks = kBlocks + 1;
  EXPECT_FALSE(BlockNews::Decode(news.Encode(), kLayers, kBytes).ok());
}

}  // namespace
}  // namespace tangram::engine
