// What ranks of engines in other languages tell each other at a flip: planned, or refused.
#include "agent/engine/abi/manifest.h"

#include <gtest/gtest.h>

#include <limits>

namespace tangram::engine {
namespace {

constexpr uint32_t kLayers = 3, kTokens = 16;
constexpr uint64_t kBytes = kLayers * 8 * 256;
const kv::Shape kShape{4, 2, kTokens, 8};

BlockManifest Sound() {
  BlockManifest out;
  out.kv = {0, 8 * 256, 256, 256, 8, 5};
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

TEST(BlockManifest, ComesAsItWasSent) {
  const auto came = Sent(Sound());
  ASSERT_TRUE(came.ok()) << came.status().message();
  ASSERT_EQ(came->requests.size(), 2u);
  EXPECT_EQ(came->requests[0].blocks, (std::vector<uint32_t>{3, 1, 4}));
  EXPECT_EQ(came->requests[0].state, (Bytes{1, 2}));
  EXPECT_TRUE(came->requests[0].running);
  EXPECT_EQ(came->requests[1].reserved, 30u);
  EXPECT_EQ(came->kv.At(2, 3), 2 * 8 * 256 + 3 * 256u);
}

TEST(BlockManifest, WhatContradictsItselfIsRefused) {
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

TEST(BlockManifest, BlocksLieInTheRegionWithoutWrapping) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const BlockLayout kv : {BlockLayout{1, 8 * 256, 256, 256, 8, 0},
                               {0, 8 * 256 + 1, 256, 256, 8, 0},
                               {0, 8 * 256, 257, 256, 8, 0},
                               {0, 8 * 256, 256, 257, 8, 0},
                               {0, 8 * 256, 256, 256, 9, 0},
                               {kMost, 1, 1, 1, 1, 0},
                               {0, kMost / 2 + 1, 0, 1, 1, 0},
                               {0, 1, kMost / 7, 1, 8, 0},
                               {0, 8 * 256, 256, 256, 8, 9}}) {
    BlockManifest bad = Sound();
    bad.requests.clear();
    bad.kv = kv;
    EXPECT_FALSE(Sent(bad).ok()) << kv.offset << " " << kv.layer_stride << " " << kv.block_stride;
  }
}

TEST(BlockManifest, RequestsOfWhoLeavesGoToWhoStays) {
  const BlockManifest full = *Sent(Sound());
  BlockManifest empty = Sound();
  empty.requests.clear();
  empty.kv.free_blocks = 8;
  const auto plan = PlanBlocks(kShape, kLayers, Data({"p", "q"}), Data({"q"}), {full, empty});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->requests[0].home, 0u);
  EXPECT_EQ(plan->requests[1].home, 0u);
  EXPECT_EQ(plan->requests_moved, 2u);
  EXPECT_EQ(plan->requests[0].blocks.size(), 2u) << "20 positions; the third block has none";
}

TEST(BlockManifest, WhatDoesNotFitIsDeclined) {
  BlockManifest full = *Sent(Sound()), other = *Sent(Sound());
  other.requests[0].request = "c";
  other.requests[1].request = "d";
  other.requests[0].reserved = 128;
  EXPECT_EQ(
      PlanBlocks(kShape, kLayers, Data({"p", "q"}), Data({"q"}), {full, other}).status().code(),
      Code::kNoMemory);
}

TEST(BlockManifest, LayoutsThatSplitHeadsAreRefused) {
  Side split = Data({"p", "q"});
  split.groups[1] = {{{0, 1}, {0, 2, 4}}};
  EXPECT_EQ(PlanBlocks(kShape, kLayers, Data({"p"}), split, {Sound()}).status().code(),
            Code::kInvalid);
}

}  // namespace
}  // namespace tangram::engine
