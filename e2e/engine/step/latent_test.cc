// Worlds whose KV are latents, of both DeepSeek families: every rank of an attention group keeps
// all KV of a request, heads are split, and the bits equal the oracle's.
#include <gtest/gtest.h>

#include "e2e/engine/model/test_checkpoint.h"
#include "e2e/engine/testing/oracles.h"

namespace tangram::engine {
namespace {

using testing::ExpectAllFree;
using testing::ExpectOracles;
using testing::GroupsOfSize;
using testing::LayoutSpec;
using testing::MakeRequest;
using testing::TestWorld;
using testing::Uniform;

class Latents : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kLayers = 4;
  static constexpr uint32_t kMembers = 5;
  static constexpr uint32_t kKvBytes = 4 << 20;

  void SetUp() override {
    const auto dir = model::TestCheckpoint(GetParam());
    ASSERT_TRUE(dir.ok()) << dir.status().message();
    auto opened = model::Checkpoint::Open(*dir, model::TestGranuleRows(GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = std::move(*opened);
    ASSERT_EQ(checkpoint_->config().layers, kLayers);
    world_ = std::make_unique<TestWorld>(
        checkpoint_.get(), TestWorld::Options{.members = kMembers, .kv_bytes = kKvBytes});
    ASSERT_EQ(world_->Failure(), "");
  }
  void Flip(const LayoutSpec& spec, const char* what) {
    const Status status = world_->net.Flip(spec);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message() << world_->Failure();
  }
  LayoutSpec Of(uint32_t ranks, uint32_t g, uint32_t t) {
    return Uniform(world_->Names(ranks), kLayers, ranks, g, t);
  }
  // Various lengths, so that blocks are partly filled, and prompts of several chunks.
  void Submit(uint32_t count, uint32_t homes, uint32_t tokens) {
    for (uint32_t n = 0; n < count; ++n) {
      submits_.push_back(MakeRequest(n, 5 + n * 11, tokens));
      world_->Submit(n % homes, submits_.back());
    }
  }

  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<TestWorld> world_;
  std::vector<v1::Submit> submits_;
};

// While a request runs, each rank that has one of its heads has a page for every layer and block.
TEST_P(Latents, AreStoredWholeOnEveryRankOfGroup) {
  Flip(Of(3, 3, 3), "tensor");
  Submit(1, 1, 300);
  ASSERT_TRUE(world_->sink.WaitTokens("r0", 30)) << world_->Failure();
  world_->Stop();
  const uint32_t latent = checkpoint_->config().head_dim * sizeof(float);
  uint32_t held[3];
  for (uint32_t r = 0; r < 3; ++r) {
    const kv::RankState state = world_->ranks[r]->engine->reference().pages().State();
    EXPECT_EQ(state.total_pages, kKvBytes / (16 * latent));
    held[r] = state.total_pages - state.free_pages;
    EXPECT_EQ(held[r] % kLayers, 0u);
  }
  EXPECT_GE(held[0], 3 * kLayers) << "35 tokens are three blocks";
  EXPECT_EQ(held[0], held[1]);
  EXPECT_EQ(held[0], held[2]);
}

class LatentTour : public Latents {};

TEST_P(LatentTour, ResizesAndSwitchesChangeNoBit) {
  Flip(Of(3, 1, 1), "expert");
  Submit(9, 3, 200);
  ASSERT_TRUE(world_->sink.WaitTokens("r8", 3)) << world_->Failure();
  Flip(Uniform(world_->names, kLayers, 3, 1, 1), "join");
  Flip(Of(5, 1, 1), "expert 3 -> 5");
  LayoutSpec walk = Of(5, 1, 1);
  for (uint32_t l = kLayers; l-- > 0;) {
    walk.layers[l] = {GroupsOfSize(5, 5), false, GroupsOfSize(5, 5)};
    Flip(walk, "walk to tensor");
  }
  Flip(Of(5, 2, 3), "hybrid");
  Flip(Of(5, 1, 1), "expert");
  Flip(Uniform(world_->names, kLayers, 2, 2, 2), "tensor 2");
  Flip(Of(2, 2, 2), "leave");
  for (const v1::Submit& submit : submits_) {
    EXPECT_LT(world_->sink.Stream(submit.request()).size(), submit.max_tokens())
        << "the tour must end before the requests do";
  }
  ASSERT_TRUE(world_->sink.WaitFinished(submits_.size())) << world_->Failure();
  ExpectOracles(*world_, *checkpoint_, submits_);
  ExpectAllFree(*world_);
}

TEST_P(Latents, AreRightAfterDeathInTensorWorld) {
  Flip(Of(3, 3, 3), "tensor");
  Submit(6, 2, 60);  // none on the rank that dies
  ASSERT_TRUE(world_->sink.WaitTokens("r5", 5)) << world_->Failure();
  world_->Kill(2);
  ASSERT_TRUE(world_->net.WaitStopped(world_->Names(2))) << world_->Failure();
  const Status repaired = world_->net.Repair(Of(2, 2, 2));
  ASSERT_TRUE(repaired.ok()) << repaired.message() << world_->Failure();
  ASSERT_TRUE(world_->sink.WaitFinished(submits_.size())) << world_->Failure();
  ExpectOracles(*world_, *checkpoint_, submits_);
}

INSTANTIATE_TEST_SUITE_P(Presets, Latents, ::testing::Values("deepseek-v2", "deepseek-v3"));
// FP8 blocks make steps four times as long; TestDeepSeek covers them.
INSTANTIATE_TEST_SUITE_P(Presets, LatentTour, ::testing::Values("deepseek-v2"));

}  // namespace
}  // namespace tangram::engine
