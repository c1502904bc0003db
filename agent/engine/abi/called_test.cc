// A flip of an engine in another language: the kit's plan, proof and fetches.
#include "agent/engine/abi/called.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/base/limits.h"
#include "agent/engine/abi/testing/fakes.h"
#include "agent/engine/turn/testing/scripted.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kLayers = 3, kTokens = 16, kBlocks = 8;
constexpr uint64_t kBlockBytes = 256;  // of a block in a layer

// Rank 1 of two, the only one of the target. It adopts into the blocks from 4 on.
class Flip : public ::testing::Test {
 protected:
  Flip() {
    world_.described.layers = kLayers;
    world_.described.query_heads = 4;
    world_.described.kv_heads = 2;
    world_.described.kv_head_token_bytes = 8;
    world_.described.kv_bytes = kLayers * kBlocks * kBlockBytes;
    for (tg_layer_map& layer : layers_) layer.moe_ordinal = -1;
    maps_.epoch = 7;
    maps_.rank = 1;
    maps_.world_size = 2;
    maps_.layers = layers_.data();
    epoch_ = {&maps_, DataParallel({"p", "q"}, kLayers), 1};
    called_.emplace(Callbacks(), kTokens, &world_, &nowhere_);
    EXPECT_TRUE(called_->Enter(epoch_, Entry::kKept).ok());
  }

  tge_backend Callbacks() {
    tge_backend out{};
    out.struct_size = sizeof out;
    out.self = this;
    out.kv_layout = [](void*, tge_kv_layout* kv) {
      kv->layer_stride = kBlocks * kBlockBytes;
      kv->block_stride = kv->block_bytes = kBlockBytes;
      kv->blocks = kv->free_blocks = kBlocks;
    };
    out.manifest = [](void*, tge_manifest*) {};
    out.adopt = [](void* self, const tge_request* request, uint32_t* blocks, tg_error*) {
      static_cast<Flip*>(self)->adopted_.emplace_back(request->request);
      for (uint32_t b = 0; b < request->block_count; ++b) blocks[b] = 4 + b;
      return TG_OK;
    };
    out.enter = [](void*, uint64_t, tge_entry, tg_error*) { return TG_OK; };
    return out;
  }
  // Rank 0 has a request of two blocks.
  Status Plan() {
    BlockManifest theirs;
    theirs.kv = {{{kLayers, 0, kBlocks * kBlockBytes, kBlockBytes, kBlockBytes}}, kBlocks, 6};
    theirs.requests.resize(1);
    theirs.requests[0] = {"x", "gw", true, 20, 40, {3, 1}, {}};
    return called_->Plan(epoch_.side, DataParallel({"q"}, kLayers), false,
                         {spoilt_ ? Bytes{9} : theirs.Encode(), called_->Manifest({}, false)},
                         &moved_, &malformed_);
  }

  FakeWorld world_;
  testing::Nowhere nowhere_;
  Waits waits_;
  std::vector<tg_layer_map> layers_{kLayers};
  tg_maps maps_{};
  Epoch epoch_;
  std::optional<Called> called_;
  std::vector<std::string> adopted_;
  uint64_t moved_ = 0;
  uint32_t malformed_ = kNoRank;
  bool spoilt_ = false;  // their manifest
};

TEST_F(Flip, FetchesBlocksOfMovingRequest) {
  ASSERT_TRUE(Plan().ok());
  EXPECT_EQ(moved_, 1u);
  world_.waits = 1000;  // milliseconds
  const auto brought = called_->Bring(0, waits_);
  ASSERT_TRUE(brought.ok()) << brought.status().message();
  EXPECT_EQ(*brought, 2 * kLayers * kBlockBytes);
  EXPECT_EQ(adopted_, std::vector<std::string>{"x"});
  EXPECT_GE(waits_.heartbeats, 1000 / limits::kSlice.count()) << "the others wait";
}

// A rank executes no part that it cannot prove: all learn of it, and stay.
TEST_F(Flip, FetchesNothingWhenPartIsUnproven) {
  ASSERT_TRUE(Plan().ok());
  const auto brought = called_->Bring(1, waits_);  // the target has one rank
  EXPECT_EQ(brought.status().code(), Code::kInternal);
  EXPECT_NE(brought.status().message().find("KV plan: "), std::string::npos)
      << brought.status().message();
  EXPECT_TRUE(adopted_.empty());
}

TEST_F(Flip, NamesRankWithMalformedText) {
  spoilt_ = true;
  EXPECT_FALSE(Plan().ok());
  EXPECT_EQ(malformed_, 0u);
  EXPECT_FALSE(called_->Heard({Bytes{}, Bytes{9}}, &malformed_).ok());
  EXPECT_EQ(malformed_, 1u);
}

}  // namespace
}  // namespace tangram::engine
