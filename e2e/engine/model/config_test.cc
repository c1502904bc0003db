#include "e2e/engine/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "e2e/engine/model/experts.h"

namespace tangram::model {
namespace {

using ::testing::HasSubstr;

constexpr char kQwen3[] = R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "vocab_size": 256,
  "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
  "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "intermediate_size": 128,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3]})";

// As on the hub, except the sizes.
constexpr char kV3[] = R"({"model_type": "deepseek_v3", "num_hidden_layers": 5, "vocab_size": 256,
  "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 6, "n_routed_experts": 8,
  "num_experts_per_tok": 3, "moe_intermediate_size": 48, "intermediate_size": 128,
  "n_shared_experts": 2, "first_k_dense_replace": 2, "moe_layer_freq": 1, "n_group": 4,
  "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "topk_method": "noaux_tc", "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12,
  "qk_rope_head_dim": 8, "v_head_dim": 20, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
  "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
  "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 128},
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";

std::string With(const std::string& text, const std::string& from, const std::string& to) {
  std::string out = text;
  return out.replace(out.find(from), from.size(), to);
}

void ExpectRefused(const std::string& text, const std::string& message) {
  const auto config = ParseConfig(text);
  ASSERT_FALSE(config.ok()) << message;
  EXPECT_EQ(config.status().code(), Code::kInvalid);
  EXPECT_THAT(config.status().message(), HasSubstr(message));
}

TEST(Config, ReadsHubAndTransformersNames) {
  const auto hub = ParseConfig(kQwen3);
  ASSERT_TRUE(hub.ok()) << hub.status().message();
  EXPECT_EQ(hub->experts, 8u);
  EXPECT_EQ(hub->rope.theta, 1e6);
  EXPECT_FALSE(hub->rope.pairs);
  EXPECT_EQ(hub->moe_layer, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(hub->kv_row(), (KvRow{16, 16, false}));
  EXPECT_EQ(hub->shared_inner, 0u);
  const auto five =
      ParseConfig(With(kQwen3, "\"rope_theta\": 1000000.0",
                       "\"rope_parameters\": {\"rope_theta\": 5.0, \"rope_type\": \"default\"}"));
  ASSERT_TRUE(five.ok()) << five.status().message();
  EXPECT_EQ(five->rope.theta, 5.0);
  EXPECT_TRUE(ParseConfig(With(kQwen3, "num_experts\"", "num_local_experts\"")).ok());
}

TEST(Config, ReadsLatentsGroupsAndYarn) {
  const auto v3 = ParseConfig(kV3);
  ASSERT_TRUE(v3.ok()) << v3.status().message();
  EXPECT_EQ(v3->kv_heads, 1u);
  EXPECT_EQ(v3->kv_row(), (KvRow{40, 32, true}));
  EXPECT_EQ(v3->latent->q_rank, 24u);
  EXPECT_EQ(v3->shared_inner, 96u);
  EXPECT_EQ(v3->moe_layer, (std::vector<bool>{false, false, true, true, true}));
  EXPECT_TRUE(v3->router.sigmoid && v3->router.bias && v3->router.normalise);
  EXPECT_EQ(v3->router.groups, 4u);
  EXPECT_EQ(v3->router.groups_kept, 2u);
  EXPECT_EQ(v3->router.group_best, 2u);
  EXPECT_EQ(v3->router.scale, 2.5f);
  EXPECT_TRUE(v3->rope.pairs);
  EXPECT_EQ(v3->rope.width, 8u);
  EXPECT_EQ(v3->rope.yarn->TableScale(), 1.0);
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(v3->score_scale, mscale * mscale / std::sqrt(20.0), 1e-6);

  const std::string v2 = With(With(With(kV3, "deepseek_v3", "deepseek_v2"), "sigmoid", "softmax"),
                              "\"norm_topk_prob\": true", "\"norm_topk_prob\": false");
  const auto limited = ParseConfig(With(v2, "noaux_tc", "group_limited_greedy"));
  ASSERT_TRUE(limited.ok()) << limited.status().message();
  EXPECT_FALSE(limited->router.sigmoid || limited->router.bias || limited->router.normalise);
  EXPECT_EQ(limited->router.groups, 4u);
  EXPECT_EQ(limited->router.group_best, 1u);
  const auto lite = ParseConfig(
      With(With(v2, "noaux_tc", "greedy"), "\"q_lora_rank\": 24", "\"q_lora_rank\": null"));
  ASSERT_TRUE(lite.ok()) << lite.status().message();
  EXPECT_EQ(lite->latent->q_rank, 0u);
  EXPECT_EQ(lite->router.groups, 1u) << "n_group says nothing to the method";
}

TEST(Config, RejectsUnsupportedConfig) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"not json", "not a JSON object"},
           {With(kQwen3, "qwen3_moe", "mixtral"),
            "\"mixtral\" is not supported (qwen3_moe, deepseek_v2, deepseek_v3)"},
           {With(kQwen3, "\"hidden_size\": 64,", ""), "hidden_size"},
           {With(kQwen3, "\"hidden_size\": 64", "\"hidden_size\": -4"), "hidden_size is -4, want"},
           {With(kQwen3, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"),
            "do not divide"},
           {With(kQwen3, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"),
            "num_experts_per_tok = 9 of 8 experts"},
           {With(kQwen3, "[3]", "[\"x\"]"), "mlp_only_layers"},
           {With(kQwen3, "\"norm_topk_prob\": true", "\"attention_bias\": true"), "attention_bias"},
           {With(kQwen3, "\"rope_theta\": 1000000.0",
                 "\"rope_scaling\": {\"rope_type\": \"yarn\"}"),
            "yarn"},
       }) {
    ExpectRefused(text, message);
  }
}

TEST(Config, RejectsUnsupportedLatentsAndRouters) {
  for (const auto& [from, to, message] : std::vector<std::array<std::string, 3>>{
           {"\"kv_lora_rank\": 32,", "", "kv_lora_rank is missing"},
           {"\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 7", "7 is odd"},
           {"\"type\": \"yarn\"", "\"type\": \"longrope\"", "longrope"},
           {"\"rope_theta\": 10000", "\"rope_theta\": 1", "rope_theta 1 is not above 1"},
           {"\"beta_slow\": 1", "\"beta_slow\": 0", "beta_slow"},
           {"\"factor\": 40", "\"factor\": 0.5", "factor 0.5 of yarn is below 1"},
           {"\"factor\": 40", "\"factor\": 40, \"attention_factor\": 2", "attention_factor"},
           {", \"original_max_position_embeddings\": 128", "", "original_max_position_embeddings"},
           {"\"n_group\": 4", "\"n_group\": 3", "n_group 3, topk_group 2 of 8 experts"},
           {"\"n_group\": 4", "\"n_group\": 8", "n_group 8"},
           {"\"topk_group\": 2", "\"topk_group\": 1", "3 experts per token of only 2"},
           {"\"topk_group\": 2", "\"topk_group\": 5", "topk_group 5"},
           {"\"sigmoid\"", "\"softmax\"", "scoring_func \"softmax\": only \"sigmoid\""},
           {"noaux_tc", "greedy", "topk_method \"greedy\": only \"noaux_tc\""},
           {"\"rope_theta\": 10000", "\"rope_interleave\": false", "rope_interleave"},
           {"[128, 128]", "[64, 128]", "weight_block_size is [64,128], want [128,128]"},
           {"\"fp8\"", "\"awq\"", "quant_method \"awq\" is not supported (fp8)"},
           {"deepseek_v3", "deepseek_v2", "only \"greedy\" is computed"},
       }) {
    ExpectRefused(With(kV3, from, to), message);
  }
  ExpectRefused(With(With(With(kV3, "deepseek_v3", "deepseek_v2"), "noaux_tc", "greedy"), "sigmoid",
                     "softmax"),
                "norm_topk_prob is not computed");
}

TEST(Config, RejectsExpertsOtherThanThreeMatrices) {
  constexpr uint64_t kBf16 = 3 * 16 * 64 * 2, kFp8 = 3 * 256 * 144;
  EXPECT_TRUE(CheckExperts({2, 16, 64, kBf16, 0}).ok());
  EXPECT_TRUE(CheckExperts({1, 16, 64, 2 * kBf16, 0}).ok());
  EXPECT_TRUE(CheckExperts({3, 256, 144, kFp8 + 3 * 4 * 4, 0}).ok()) << "2 x 2 blocks";
  EXPECT_TRUE(CheckExperts({3, 256, 144, kFp8 + 3 * 4 * 2, 0}).ok()) << "scales in BF16";
  const std::vector<std::pair<ExpertBytes, std::string>> bad = {
      {{3, 64, 144, kFp8 / 4 + 24, 0}, "granules of 64 rows cut the blocks of 128"},
      {{3, 256, 144, kFp8, 0}, "granules of 110592 bytes"},
      {{3, 256, 144, kFp8 + 3 * 4, 0}, "granules of 110604 bytes"},
      {{4, 16, 64, kBf16, 0}, "dtype 4"},
      {{2, 16, 64, kBf16 + 64, 128}, "granules of 6208 bytes and a tail of 128"},
      {{2, 16, 64, kBf16, 128}, "a tail of 128"},
      {{2, 16, 64, kBf16 - 2, 0}, "granules of 6142 bytes"},
      {{1, 16, 64, kBf16, 0}, "take 12288"},
  };
  for (const auto& [experts, message] : bad) {
    const Status status = CheckExperts(experts);
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  ExpectRefused(With(kQwen3, "qwen3_moe", "gpt_oss"), "gpt_oss");
}

}  // namespace
}  // namespace tangram::model
