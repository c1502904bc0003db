#include "e2e/engine/model/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

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

// The documented order of a dot product, written in plain code.
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

TEST(Kernels, DecodesFp8AsE4M3) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  const float one = 1;
  std::vector<float> out(codes.size());
  ToFloat({codes.data(), DType::kFp8, 2, 128, 128, {&one, DType::kF32, 1}}, out.data());
  for (uint32_t code = 0; code < 127; ++code) {
    const double want =
        code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, static_cast<int>(code / 8) - 10);
    EXPECT_EQ(out[code], want) << code;
    EXPECT_EQ(out[code + 128], -want) << code;
  }
  EXPECT_EQ(out[126], 448);
  MatMul({codes.data(), DType::kFp8, 64, 4, 4, {&one, DType::kF32, 1}}, nullptr, 4, 0, nullptr, 64);
  EXPECT_TRUE(std::isnan(out[127]) && std::isnan(out[255]));
}

// In any part of a matrix, each number is scaled by its block of the whole matrix.
TEST(Kernels, PartsOfFp8MatrixMatchFp32) {
  constexpr uint32_t kRows = 300, kCols = 150, kBlocks = 2;
  std::mt19937 random(8);
  std::vector<uint8_t> codes(kRows * kCols);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 127 | (random() & 128));
  const std::vector<float> scales = Random(3 * kBlocks, 9);
  std::vector<uint16_t> narrow;  // the same, rounded down to BF16
  std::vector<float> of_narrow;
  for (const float scale : scales) {
    narrow.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16));
    of_narrow.push_back(std::bit_cast<float>(uint32_t{narrow.back()} << 16));
  }
  for (const bool bf16 : {false, true}) {
    const void* data = bf16 ? static_cast<const void*>(narrow.data()) : scales.data();
    const Scales by{data, bf16 ? DType::kBf16 : DType::kF32, kBlocks};
    const Matrix whole{codes.data(), DType::kFp8, kRows, kCols, kCols, by};
    std::vector<float> wide(codes.size());
    const float one = 1;
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t c = 0; c < kCols; ++c) {
        ToFloat({&codes[r * kCols + c], DType::kFp8, 1, 1, 1, {&one, DType::kF32, 1}},
                &wide[r * kCols + c]);
        wide[r * kCols + c] *= (bf16 ? of_narrow : scales)[r / 128 * kBlocks + c / 128];
      }
    }
    const Matrix in_fp32{wide.data(), DType::kF32, kRows, kCols, kCols};
    const std::vector<float> x = Random(3 * kRows, 10);
    for (const auto& [row, rows, col, cols] : std::vector<std::array<uint32_t, 4>>{
             {0, kRows, 0, kCols}, {100, 57, 0, kCols}, {127, 2, 120, 30}, {256, 44, 128, 22}}) {
      const Matrix a = whole.Rows(row, rows).Columns(col, cols);
      const Matrix b = in_fp32.Rows(row, rows).Columns(col, cols);
      std::vector<float> got(3 * kRows), want(3 * kRows);
      MatMul(a, x.data(), kRows, 3, got.data(), kRows);
      MatMul(b, x.data(), kRows, 3, want.data(), kRows);
      EXPECT_EQ(got, want) << row << ", " << col;
      TransposedMatMul(a, x.data(), kRows, 3, got.data(), kRows);
      TransposedMatMul(b, x.data(), kRows, 3, want.data(), kRows);
      EXPECT_EQ(got, want) << row << ", " << col;
    }
  }
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

TEST(Fixed, ReportsOverflowInsteadOfWrapping) {
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

TEST(Sampler, GreedyPicksLowestTokenOnTie) {
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

}  // namespace
}  // namespace tangram::model
