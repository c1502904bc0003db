#include "e2e/engine/model/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "e2e/engine/model/config.h"
#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/sampler.h"

namespace tangram::model {
namespace {

std::vector<float> Random(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

TEST(Kernels, ExpIsWithinTwoUlp) {
  for (double x = -87.2; x < 88.6; x += 0.00137) {
    const auto f = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(f));
    const float rounded = static_cast<float>(want);
    const double ulp = std::nextafter(rounded, INFINITY) - rounded;
    ASSERT_LE(std::fabs(Exp(f) - want), 2 * ulp) << f;
  }
  EXPECT_EQ(Exp(0), 1.0f);
  EXPECT_EQ(Exp(-1000), 0.0f);
  EXPECT_EQ(Exp(-INFINITY), 0.0f);
  EXPECT_EQ(Exp(89), INFINITY);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
  EXPECT_EQ(Silu(-1000), 0.0f);
  EXPECT_EQ(Silu(50), 50.0f);
}

// The documented order of a dot product, written down plainly.
float PlainDot(const float* a, const float* b, size_t n) {
  float lanes[16] = {};
  for (size_t i = 0; i < n; ++i) lanes[i % 16] += a[i] * b[i];
  for (size_t w = 8; w > 0; w /= 2) {
    for (size_t i = 0; i < w; ++i) lanes[i] += lanes[i + w];
  }
  return lanes[0];
}

TEST(Kernels, MatMulHasTheDocumentedBitsForEveryShapeAlignmentAndBatch) {
  for (size_t cols : {1u, 15u, 16u, 24u, 72u, 256u}) {
    for (uint32_t rows : {1u, 2u, 5u, 8u}) {
      for (size_t offset : {0u, 1u, 3u}) {
        const auto w = Random(rows * cols + offset, 1), x = Random(5 * cols + offset, 2);
        const Matrix m{w.data() + offset, DType::kF32, rows, static_cast<uint32_t>(cols), cols};
        for (size_t count : {1u, 2u, 5u}) {
          std::vector<float> out(count * rows);
          MatMul(m, x.data() + offset, cols, count, out.data(), rows);
          for (size_t i = 0; i < count; ++i) {
            for (size_t r = 0; r < rows; ++r) {
              ASSERT_EQ(out[i * rows + r],
                        PlainDot(&w[offset + r * cols], &x[offset + i * cols], cols));
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, TransposedMatMulSumsRowsInOrder) {
  const size_t cols = 40, inner = 16, count = 7;
  const auto w = Random(inner * cols, 3), x = Random(count * inner, 4);
  std::vector<float> out(count * cols);
  TransposedMatMul({w.data(), DType::kF32, inner, cols, cols}, x.data(), inner, count, out.data(),
                   cols);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      float want = 0;
      for (size_t r = 0; r < inner; ++r) want += w[r * cols + j] * x[i * inner + r];
      ASSERT_EQ(out[i * cols + j], want);
    }
  }
}

TEST(Kernels, Bf16EqualsTheSameValuesInFp32) {
  auto wide = Random(24 * 72, 5);
  std::vector<uint16_t> narrow(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    narrow[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(wide[i]) >> 16);
    wide[i] = std::bit_cast<float>(uint32_t{narrow[i]} << 16);
  }
  const auto x = Random(3 * 72, 6);
  std::vector<float> a(3 * 24), b(3 * 24);
  MatMul({wide.data(), DType::kF32, 24, 72, 72}, x.data(), 72, 3, a.data(), 24);
  MatMul({narrow.data(), DType::kBf16, 24, 72, 72}, x.data(), 72, 3, b.data(), 24);
  EXPECT_EQ(a, b);
}

TEST(Fixed, RoundsToEvenAndAddsInAnyOrder) {
  std::vector<int64_t> acc(1);
  const float unit = std::ldexp(1.0f, -kFixedBits);
  ASSERT_TRUE(AccumulateFixed(std::vector<float>{2.5f * unit}, acc, "t").ok());
  EXPECT_EQ(acc[0], 2);
  ASSERT_TRUE(AccumulateFixed(std::vector<float>{-3.5f * unit}, acc, "t").ok());
  EXPECT_EQ(acc[0], -2);
  std::vector<float> x = {1};
  AddToResidual(std::vector<int64_t>{int64_t{3} << (kFixedBits - 1)}, x);
  EXPECT_EQ(x[0], 2.5f);
}

TEST(Fixed, OverflowIsAnErrorNeverAWrap) {
  for (float bad : {kFixedLimit, -kFixedLimit, INFINITY, -INFINITY, NAN}) {
    std::vector<int64_t> acc(3);
    const Status s = AccumulateFixed(std::vector<float>{1, bad, 1}, acc, "expert output");
    ASSERT_EQ(s.code(), Code::kInternal) << bad;
    EXPECT_THAT(s.message(), testing::HasSubstr("expert output: partial"));
    EXPECT_THAT(s.message(), testing::HasSubstr("element 1"));
  }
  std::vector<int64_t> acc = {std::numeric_limits<int64_t>::max() - 5};
  EXPECT_FALSE(AccumulateFixed(std::vector<float>{1}, acc, "t").ok());
  acc = {std::numeric_limits<int64_t>::max() - 5};
  EXPECT_FALSE(AddFixed(std::vector<int64_t>{6}, acc).ok());
  acc = {std::numeric_limits<int64_t>::max() - 5};
  EXPECT_TRUE(AddFixed(std::vector<int64_t>{5}, acc).ok());
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(Sample(std::vector<float>{1, 3, 3, 2}, {}, 7), 1u);
}

TEST(Sampler, PhiloxMatchesThePublishedVector) {
  // Random123 kat_vectors: philox4x32 10, counter and key all zero -> 6627e8d5 e169c58d ...
  const uint64_t bits = uint64_t{0xe169c58d} << 32 | 0x6627e8d5;
  EXPECT_EQ(UniformAt(0, 0), static_cast<double>(bits >> 11) * 0x1p-53);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -INFINITY};
  std::vector<int> counts(4), cut(4);
  const int draws = 40000;
  for (int p = 0; p < draws; ++p) {
    ++counts[Sample(logits, {1.0f, 1.0f, 99}, p)];
    ++cut[Sample(logits, {1.0f, 0.6f, 99}, p)];
  }
  EXPECT_NEAR(counts[0], draws / 8.0, 400);
  EXPECT_NEAR(counts[1], draws / 4.0, 500);
  EXPECT_NEAR(counts[2], draws * 5 / 8.0, 600);
  EXPECT_EQ(counts[3], 0);
  EXPECT_EQ(cut[2], draws);  // 5/8 reaches 0.6 alone
  EXPECT_EQ(Sample(logits, {1.0f, 1.0f, 99}, 5), Sample(logits, {1.0f, 1.0f, 99}, 5));
}

constexpr char kConfig[] = R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "vocab_size": 256,
  "hidden_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
  "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "intermediate_size": 128,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3]})";

std::string With(const std::string& from, const std::string& to) {
  std::string out = kConfig;
  return out.replace(out.find(from), from.size(), to);
}

TEST(Config, ReadsHubAndTransformersNames) {
  const auto hub = ParseConfig(kConfig);
  ASSERT_TRUE(hub.ok()) << hub.status().message();
  EXPECT_EQ(hub->experts, 8u);
  EXPECT_EQ(hub->rope_theta, 1e6);
  EXPECT_EQ(hub->moe_layer, (std::vector<bool>{false, true, false, false}));
  const auto five =
      ParseConfig(With("\"rope_theta\": 1000000.0",
                       "\"rope_parameters\": {\"rope_theta\": 5.0, \"rope_type\": \"default\"}"));
  ASSERT_TRUE(five.ok()) << five.status().message();
  EXPECT_EQ(five->rope_theta, 5.0);
  EXPECT_TRUE(ParseConfig(With("num_experts\"", "num_local_experts\"")).ok());
}

TEST(Config, RefusesWhatItDoesNotCompute) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"not json", "not a JSON object"},
      {With("qwen3_moe", "mixtral"), "mixtral"},
      {With("\"hidden_size\": 64,", ""), "hidden_size"},
      {With("\"hidden_size\": 64", "\"hidden_size\": -4"), "hidden_size = -4"},
      {With("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"), "do not divide"},
      {With("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"), "9 experts per token"},
      {With("[3]", "[4]"), "mlp_only_layers"},
      {With("\"norm_topk_prob\": true", "\"attention_bias\": true"), "attention_bias"},
      {With("\"rope_theta\": 1000000.0", "\"rope_scaling\": {\"rope_type\": \"yarn\"}"), "yarn"},
  };
  for (const auto& [text, message] : bad) {
    const auto config = ParseConfig(text);
    ASSERT_FALSE(config.ok()) << message;
    EXPECT_EQ(config.status().code(), Code::kInvalid);
    EXPECT_THAT(config.status().message(), testing::HasSubstr(message));
  }
}

TEST(Config, ExpertsThatAreMoreThanThreeMatricesAreRefused) {
  constexpr uint64_t kBf16 = 3 * 16 * 64 * 2;
  EXPECT_TRUE(CheckExperts({2, 16, 64, kBf16, 0}).ok());
  EXPECT_TRUE(CheckExperts({1, 16, 64, 2 * kBf16, 0}).ok());
  const std::vector<std::pair<ExpertBytes, std::string>> bad = {
      {{3, 128, 64, 3 * 128 * 64 + 12, 0}, "dtype 3"},
      {{4, 16, 64, kBf16, 0}, "dtype 4"},
      {{2, 16, 64, kBf16 + 64, 128}, "granules of 6208 bytes and a tail of 128"},
      {{2, 16, 64, kBf16, 128}, "a tail of 128"},
      {{2, 16, 64, kBf16 - 2, 0}, "granules of 6142 bytes"},
      {{1, 16, 64, kBf16, 0}, "take 12288"},
  };
  for (const auto& [experts, message] : bad) {
    const Status status = CheckExperts(experts);
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(status.message(), testing::HasSubstr(message));
  }
  EXPECT_THAT(ParseConfig(With("qwen3_moe", "gpt_oss")).status().message(),
              testing::HasSubstr("gpt_oss"));
}

}  // namespace
}  // namespace tangram::model
