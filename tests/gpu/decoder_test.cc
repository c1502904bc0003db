// The results of the act `tokens`, against the model's formulas in double on the host.
#include "tests/gpu/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "agent/device/testing/fake_cuda.h"
#include "tests/gpu/decoder_experts.h"

namespace tangram::gpu {
namespace {

using device::testing::FakeCuda;
using Row = std::vector<double>;

constexpr DecoderShape kShape{2, 32, 4, 2, 8, 6, 2, 16, 40, 4, 3, 4};
constexpr uint64_t kSeed = 9;

// Weights as `fill_bf16` makes them.
Row Weights(uint64_t seed, uint64_t first, uint64_t count, float scale) {
  std::vector<uint16_t> bits(count);
  const kernels::FillParameters fill{reinterpret_cast<uint64_t>(bits.data()), count, first, seed,
                                     scale};
  kernels::Find("fill_bf16")->twin(1, 1, &fill);
  Row out;
  for (const uint16_t b : bits) out.push_back(std::bit_cast<float>(uint32_t{b} << 16));
  return out;
}

// One request, token by token.
class Oracle {
 public:
  Oracle() : keys_(kShape.layers), values_(kShape.layers) {}

  Row Step(uint32_t token) {
    const DecoderShape& s = kShape;
    const Row embedding = Weights(kSeed + 1, token * s.hidden, s.hidden, 1);
    Row x = embedding;
    for (uint64_t layer = 0; layer < s.layers; ++layer) {
      Attend(layer, &x);
      Feed(layer, &x);
    }
    ++position_;
    return Times(Weights(kSeed + 2, 0, s.vocabulary * s.hidden, 0.05f), Normalised(x));
  }

 private:
  static Row Normalised(const Row& x) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Row out;
    for (const double value : x) {
      out.push_back(value / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6));
    }
    return out;
  }
  static Row Times(const Row& matrix, const Row& x) {
    Row out(matrix.size() / x.size());
    for (size_t i = 0; i < matrix.size(); ++i) out[i / x.size()] += matrix[i] * x[i % x.size()];
    return out;
  }
  // Heads, normalised and rotated.
  Row Turned(const Row& heads) const {
    const uint64_t dim = kShape.dim, half = dim / 2;
    Row out;
    for (size_t first = 0; first < heads.size(); first += dim) {
      const auto begin = heads.begin() + static_cast<int64_t>(first);
      const Row head = Normalised(Row(begin, begin + static_cast<int64_t>(dim)));
      for (uint64_t i = 0; i < dim; ++i) {
        const double power = -2.0 * static_cast<double>(i % half) / static_cast<double>(dim);
        const double angle = position_ * std::pow(1e6, power);
        const double other = i < half ? -head[i + half] : head[i - half];
        out.push_back(head[i] * std::cos(angle) + other * std::sin(angle));
      }
    }
    return out;
  }
  void Attend(uint64_t layer, Row* x) {
    const DecoderShape& s = kShape;
    const uint64_t q_rows = s.query_heads * s.dim, kv_rows = s.kv_heads * s.dim;
    const uint64_t all = (2 * q_rows + 2 * kv_rows + s.experts) * s.hidden;
    uint64_t at = layer * all;
    const auto next = [&](uint64_t count) {
      at += count;
      return Weights(kSeed + 3, at - count, count, 0.05f);
    };
    const Row n = Normalised(*x);
    const Row q = Turned(Times(next(q_rows * s.hidden), n));
    keys_[layer].push_back(Turned(Times(next(kv_rows * s.hidden), n)));
    values_[layer].push_back(Times(next(kv_rows * s.hidden), n));
    Row mixed(q_rows);
    for (uint64_t head = 0; head < s.query_heads; ++head) {
      const uint64_t kv = head / (s.query_heads / s.kv_heads) * s.dim;
      Row weights;
      double norm = 0;
      for (const Row& key : keys_[layer]) {
        double score = 0;
        for (uint64_t d = 0; d < s.dim; ++d) score += q[head * s.dim + d] * key[kv + d];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(s.dim))));
        norm += weights.back();
      }
      for (size_t t = 0; t < weights.size(); ++t) {
        for (uint64_t d = 0; d < s.dim; ++d) {
          mixed[head * s.dim + d] += weights[t] / norm * values_[layer][t][kv + d];
        }
      }
    }
    const Row out = Times(next(q_rows * s.hidden), mixed);
    for (uint64_t h = 0; h < s.hidden; ++h) (*x)[h] += out[h];
    router_ = next(s.experts * s.hidden);
  }
  void Feed(uint64_t layer, Row* x) const {
    const DecoderShape& s = kShape;
    const Row n = Normalised(*x), logits = Times(router_, n);
    std::vector<uint64_t> order(s.experts);
    for (uint64_t e = 0; e < s.experts; ++e) order[e] = e;
    std::sort(order.begin(), order.end(),
              [&](uint64_t a, uint64_t b) { return logits[a] > logits[b]; });
    double norm = 0;
    for (uint64_t k = 0; k < s.top; ++k) norm += std::exp(logits[order[k]]);
    const uint64_t count = s.expert_bytes() / 2, matrix = s.inner * s.hidden;
    for (uint64_t k = 0; k < s.top; ++k) {
      const Row slab = Weights(kSeed, (layer * s.experts + order[k]) * count, count, 0.05f);
      const auto part = [&](uint64_t m) {
        const auto begin = slab.begin() + static_cast<int64_t>(m * matrix);
        return Row(begin, begin + static_cast<int64_t>(matrix));
      };
      const Row gate = Times(part(0), n), up = Times(part(1), n);
      Row acts;
      for (uint64_t i = 0; i < s.inner; ++i)
        acts.push_back(gate[i] / (1 + std::exp(-gate[i])) * up[i]);
      const Row out = Times(part(2), acts);
      for (uint64_t h = 0; h < s.hidden; ++h) (*x)[h] += std::exp(logits[order[k]]) / norm * out[h];
    }
  }

  std::vector<std::vector<Row>> keys_, values_;  // [layer][position]
  Row router_;
  double position_ = 0;
};

class DecoderTest : public ::testing::TestWithParam<std::pair<uint64_t, bool>> {
 protected:
  void SetUp() override { FakeCuda::Become({}); }
  void TearDown() override {
    EXPECT_EQ(FakeCuda::Complaint(), "");
    EXPECT_EQ(FakeCuda::Leaks(), "");
  }
};

// Whole or sliced experts, on one rank and on two.
INSTANTIATE_TEST_SUITE_P(Layouts, DecoderTest,
                         ::testing::Values(std::pair(1, false), std::pair(2, false),
                                           std::pair(2, true)));

TEST_P(DecoderTest, MatchesModelAndPicksHighestTokenInEachStep) {
  const auto [ranks, sliced] = GetParam();
  const Gpu gpu(TANGRAM_FAKE_CUDA);
  const Kernels kernels(gpu);
  Decoder decoder(gpu, kernels, kShape, kSeed);
  DecoderExperts experts(gpu, kernels, kShape, ranks, kSeed);
  if (sliced) {
    experts.LoadSliced();
  } else {
    experts.LoadWhole(experts.InOrder());
  }
  const size_t at = decoder.Capture(sliced ? TensorMode(kShape, ranks) : ExpertMode(kShape, ranks));
  decoder.Place(at, sliced ? experts.SlicedPlaces() : experts.WholePlaces());
  std::vector<Oracle> oracles(kShape.rows);
  for (uint32_t step = 0; step < 7; ++step) {  // across three blocks of KV
    const std::vector<uint32_t> tokens = decoder.Told().tokens;
    decoder.Step(at);
    const std::vector<std::byte> bytes = decoder.Logits();
    const Decoder::Requests told = decoder.Told();
    for (uint64_t r = 0; r < kShape.rows; ++r) {
      const Row wanted = oracles[r].Step(tokens[r]);
      Row logits;
      for (uint64_t t = 0; t < kShape.vocabulary; ++t) {
        float logit = 0;
        std::memcpy(&logit, &bytes[(r * kShape.vocabulary + t) * 4], sizeof logit);
        logits.push_back(logit);
        ASSERT_NEAR(logit, wanted[t], 1e-5) << "request " << r << ", step " << step;
      }
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(told.tokens[r], static_cast<uint32_t>(best));
      EXPECT_EQ(told.history[r * kShape.positions() + step + 1], told.tokens[r]);
      EXPECT_EQ(told.positions[r], step + 1);
    }
  }
}

}  // namespace
}  // namespace tangram::gpu
