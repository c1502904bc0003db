// Manifests of engines in other languages in a flip: planned, or rejected.
#include "agent/engine/abi/manifest.h"

#include <gtest/gtest.h>

#include <limits>

#include "agent/engine/abi/moves.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kLayers = 3, kTokens = 16;
constexpr uint64_t kBytes = kLayers * 8 * 256;
const kv::Shape kShape{4, 2, kTokens, 8};

BlockManifest Sound() {
  BlockManifest out;
  out.kv = {{{kLayers, 0, 8 * 256, 256, 256}}, 8, 5};
  out.requests = {{"a", "gw", true, 20, 40, {3, 1, 4}, {1, 2}}, {"b", "gw", false, 0, 30, {}, {}}};
  return out;
}

Result<BlockManifest> Sent(const BlockManifest& manifest) {
  return BlockManifest::Decode(manifest.Encode(), kLayers, kBytes, kTokens);
}

// One group of one rank each.
Side Data(std::vector<std::string> members) {
  kv::LayerGroups groups;
  for (uint32_t r = 0; r < members.size(); ++r) groups.push_back({{r}, {0, 4}});
  return {std::vector(kLayers, groups), std::move(members)};
}

TEST(BlockManifest, RoundTrip) {
  const auto came = Sent(Sound());
  ASSERT_TRUE(came.ok()) << came.status().message();
  ASSERT_EQ(came->requests.size(), 2u);
  EXPECT_EQ(came->requests[0].blocks, (std::vector<uint32_t>{3, 1, 4}));
  EXPECT_EQ(came->requests[0].state, (Bytes{1, 2}));
  EXPECT_TRUE(came->requests[0].running);
  EXPECT_EQ(came->requests[1].reserved, 30u);
  EXPECT_EQ(came->kv.sets[0].At(2, 3), 2 * 8 * 256 + 3 * 256u);
}

TEST(BlockManifest, RejectsInconsistentManifest) {
  const Bytes sound = Sound().Encode();
  for (size_t size = 0; size < sound.size(); ++size) {
    const Bytes part(sound.begin(), sound.begin() + static_cast<long>(size));
    EXPECT_FALSE(BlockManifest::Decode(part, kLayers, kBytes, kTokens).ok()) << size;
  }
  BlockManifest bad = Sound();
  bad.requests[0].blocks[1] = 8;
  EXPECT_FALSE(Sent(bad).ok()) << "a block that there is not";
  bad = Sound();
  bad.requests[0].computed = 49;
  EXPECT_FALSE(Sent(bad).ok()) << "KV without blocks";
  bad = Sound();
  bad.requests[1].computed = 1;
  bad.requests[1].blocks = {2};
  EXPECT_FALSE(Sent(bad).ok()) << "who waits has no KV";
}

TEST(BlockManifest, RejectsBlocksOutsideRegionWithoutWrapping) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const auto refused = [](BlockLayout kv) {
    BlockManifest bad = Sound();
    bad.requests.clear();
    bad.kv = std::move(kv);
    return !Sent(bad).ok();
  };
  const std::vector<std::pair<BlockSet, uint32_t>> wrong{
      {{kLayers, 1, 8 * 256, 256, 256}, 8},   {{kLayers, 0, 8 * 256 + 1, 256, 256}, 8},
      {{kLayers, 0, 8 * 256, 257, 256}, 8},   {{kLayers, 0, 8 * 256, 256, 257}, 8},
      {{kLayers, 0, 8 * 256, 256, 256}, 9},   {{kLayers, kMost, 1, 1, 1}, 1},
      {{kLayers, 0, kMost / 2 + 1, 0, 1}, 1}, {{kLayers, 0, 1, kMost / 7, 1}, 8},
      {{kLayers, 0, 0, 0, kBytes / 2}, 8}};
  for (const auto& [set, blocks] : wrong) {
    EXPECT_TRUE(refused({{set}, blocks, 0})) << set.offset << " " << set.layer_stride;
    BlockSet second = set;
    second.layers = kMost / 2;
    EXPECT_TRUE(refused({{Sound().kv.sets[0], second}, blocks, 0})) << "a second set";
  }
  const BlockSet sound = Sound().kv.sets[0];
  EXPECT_TRUE(refused({{sound}, 8, 9})) << "more are free than there are";
  EXPECT_TRUE(refused({{}, 8, 0})) << "no set";
  EXPECT_TRUE(refused({{{kLayers - 1, 0, 8 * 256, 256, 256}}, 8, 0})) << "not the model's";
  EXPECT_TRUE(refused({std::vector(BlockLayout::kMostSets + 1, sound), 8, 0}));
  EXPECT_FALSE(refused({std::vector(BlockLayout::kMostSets, sound), 8, 8}));
}

// Compared with the definition, byte by byte: a block moves with all its bytes in every set, and no
// other byte moves.
TEST(Moves, MovesBlockInAllSets) {
  const BlockLayout theirs{{{2, 7, 64, 8, 8}, {3, 200, 3, 12, 3}, {1, 300, 0, 5, 5}}, 6, 0};
  const BlockLayout mine{{{2, 0, 8, 16, 8}, {3, 160, 30, 3, 3}, {1, 100, 0, 9, 5}}, 6, 0};
  ASSERT_TRUE(theirs.Alike(mine));
  const std::vector<uint32_t> from{2, 3, 0}, to{1, 2, 5};
  std::vector<uint8_t> source(400), target(400), want(400);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7 + i / 256 + 1);
  for (size_t s = 0; s < mine.sets.size(); ++s) {
    for (uint64_t layer = 0; layer < mine.sets[s].layers; ++layer) {
      for (size_t b = 0; b < to.size(); ++b) {
        for (uint64_t i = 0; i < mine.sets[s].block_bytes; ++i) {
          want[mine.sets[s].At(layer, to[b]) + i] = source[theirs.sets[s].At(layer, from[b]) + i];
        }
      }
    }
  }
  Moves moves;
  moves.AddBlocks(4, theirs, from, mine, to);
  uint64_t bytes = 0;
  for (const tg_kv_move& move : moves.list()) {
    EXPECT_EQ(move.source_rank, 4u);
    for (uint32_t i = 0; i < move.length; ++i) {
      target[move.target_offset + i] = source[move.source_offset + i];
    }
    bytes += move.length;
  }
  EXPECT_EQ(target, want);
  EXPECT_EQ(bytes, to.size() * mine.block_bytes());
  EXPECT_EQ(moves.bytes(), bytes);
}

TEST(BlockLayout, DiffersWhenSetsDiffer) {
  const BlockLayout kv = Sound().kv;
  BlockLayout other = kv;
  other.sets[0].offset += 9, other.sets[0].layer_stride += 9, other.blocks += 9;
  EXPECT_TRUE(kv.Alike(other)) << "where it lies is a rank's own affair";
  other.sets.push_back({1, 0, 0, 8, 8});
  EXPECT_FALSE(kv.Alike(other));
  other = kv;
  other.sets[0].block_bytes /= 2;
  EXPECT_FALSE(kv.Alike(other));
}

TEST(BlockManifest, MovesRequestsFromLeavingToStayingRank) {
  const BlockManifest full = *Sent(Sound());
  BlockManifest empty = Sound();
  empty.requests.clear();
  empty.kv.free_blocks = 8;
  const auto plan = PlanBlocks(kShape, kLayers, Data({"p", "q"}), Data({"q"}), {full, empty});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->plan.requests[0].home, 0u);
  EXPECT_EQ(plan->plan.requests[1].home, 0u);
  EXPECT_EQ(plan->plan.requests_moved, 2u);
  EXPECT_EQ(plan->plan.requests[0].blocks.size(), 2u) << "20 positions; the third block has none";
}

TEST(BlockManifest, DeclinesPlanWithoutRoom) {
  BlockManifest full = *Sent(Sound()), other = *Sent(Sound());
  other.requests[0].request = "c";
  other.requests[1].request = "d";
  other.requests[0].reserved = 128;
  EXPECT_EQ(
      PlanBlocks(kShape, kLayers, Data({"p", "q"}), Data({"q"}), {full, other}).status().code(),
      Code::kNoMemory);
}

TEST(BlockManifest, RejectsLayoutWithSplitHeads) {
  Side split = Data({"p", "q"});
  split.groups[1] = {{{0, 1}, {0, 2, 4}}};
  EXPECT_EQ(PlanBlocks(kShape, kLayers, Data({"p"}), split, {Sound()}).status().code(),
            Code::kInvalid);
}

}  // namespace
}  // namespace tangram::engine
