// Compares the kernels of a decode step with plain formulas in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;
using testing::Order;

class Numbers {
 public:
  explicit Numbers(uint32_t seed) : random_(seed) {}
  std::vector<float> Floats(size_t count) {
    std::vector<float> out(count);
    for (float& x : out) x = normal_(random_);
    return out;
  }
  std::vector<uint16_t> Bf16(size_t count) {
    std::vector<uint16_t> out;
    for (const float x : Floats(count)) {
      out.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    }
    return out;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

double Of(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

template <typename Parameters>
void RunItems(const char* name, uint64_t results, const Parameters& parameters) {
  // Too few blocks for the work, so threads take several items.
  testing::Run(name, ItemsLaunch(results, 2), parameters, Order::kBackwards);
}

TEST(Decode, ExpIsAccurateWithinTwoUlps) {
  for (float x = -86.9f; x < 87.9f; x += 0.00371f) {
    const double wanted = std::exp(static_cast<double>(x));
    ASSERT_NEAR(Exp(x) / wanted, 1, 2.4e-7) << x;
  }
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Exp(-100), 0);
  EXPECT_EQ(Exp(-INFINITY), 0);
  EXPECT_EQ(Exp(1000), Exp(88));
}

TEST(Decode, WeightsDependOnSeedAndIndexAndFillRange) {
  std::vector<uint16_t> whole(4000), part(1000), other(4000);
  RunItems("fill_bf16", 4000, FillParameters{AddressOf(whole), 4000, 100, 7, 0.5f});
  RunItems("fill_bf16", 1000, FillParameters{AddressOf(part), 1000, 1100, 7, 0.5f});
  RunItems("fill_bf16", 4000, FillParameters{AddressOf(other), 4000, 100, 8, 0.5f});
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1000));
  EXPECT_NE(whole, other);
  double sum = 0, most = 0;
  for (const uint16_t w : whole) {
    sum += Of(w);
    most = std::max(most, std::abs(Of(w)));
  }
  EXPECT_NEAR(sum / 4000, 0, 0.02);
  EXPECT_LE(most, 0.5);
  EXPECT_GT(most, 0.49);
}

TEST(Decode, MatvecMatchesReferenceForAnyWidthAndPitch) {
  for (const uint64_t columns : {1, 7, 8, 130}) {
    Numbers numbers(static_cast<uint32_t>(columns));
    const uint64_t rows = 3, outputs = 5, pitch = columns + 6;
    const auto weights = numbers.Bf16(outputs * pitch);
    const auto x = numbers.Floats(rows * columns);
    std::vector<float> to(rows * 9, -1);
    RunItems("matvec", rows * outputs,
             MatvecParameters{AddressOf(to), 9 * 4, AddressOf(x), columns * 4, AddressOf(weights),
                              pitch * 2, rows, outputs, columns});
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t o = 0; o < outputs; ++o) {
        double sum = 0;
        for (uint64_t i = 0; i < columns; ++i)
          sum += Of(weights[o * pitch + i]) * x[r * columns + i];
        EXPECT_NEAR(to[r * 9 + o], sum, 2e-5) << columns;
      }
      EXPECT_EQ(to[r * 9 + outputs], -1);
    }
  }
}

TEST(Decode, NormalizesRotatesSumsAndEmbedsRows) {
  Numbers numbers(3);
  const auto x = numbers.Floats(2 * 40);
  std::vector<float> to(80);
  RunItems("rms_norm", 2, RmsNormParameters{AddressOf(to), AddressOf(x), 2, 40, 1e-6f});
  for (uint64_t r = 0; r < 2; ++r) {
    double squares = 1e-6 * 40;
    for (uint64_t i = 0; i < 40; ++i) squares += static_cast<double>(x[r * 40 + i]) * x[r * 40 + i];
    for (uint64_t i = 0; i < 40; ++i) {
      EXPECT_NEAR(to[r * 40 + i], x[r * 40 + i] / std::sqrt(squares / 40), 1e-6);
    }
  }
  // Two rows of two heads of ten, at positions 3 and 1.
  std::vector<float> heads = x, table(4 * 5 * 2);
  const std::vector<uint32_t> positions{3, 1};
  for (uint64_t p = 0; p < 4; ++p) {
    for (uint64_t i = 0; i < 5; ++i) {
      table[(p * 5 + i) * 2] = std::cos(static_cast<float>(p * (i + 1)));
      table[(p * 5 + i) * 2 + 1] = std::sin(static_cast<float>(p * (i + 1)));
    }
  }
  RunItems("rope", 20,
           RopeParameters{AddressOf(heads), 2, 2, 10, AddressOf(positions), AddressOf(table)});
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t d = i % 10, row = i / 20, other = d < 5 ? i + 5 : i - 5;
    const double angle = static_cast<double>(positions[row] * (d % 5 + 1));
    const double turned = x[i] * std::cos(angle) + (d < 5 ? -1 : 1) * x[other] * std::sin(angle);
    EXPECT_NEAR(heads[i], turned, 1e-6) << i;
  }
  std::vector<float> sums(x.begin(), x.begin() + 20);
  RunItems("add_parts", 20, AddPartsParameters{AddressOf(sums), 20, AddressOf(x) + 80, 2, 80});
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(sums[i], (x[i] + x[i + 20]) + x[i + 40]);
  const auto rows = numbers.Bf16(7 * 6);
  const std::vector<uint32_t> tokens{6, 2};
  RunItems("embed", 12, EmbedParameters{AddressOf(to), 2, 6, AddressOf(tokens), AddressOf(rows)});
  for (uint64_t i = 0; i < 12; ++i) EXPECT_EQ(to[i], Of(rows[tokens[i / 6] * 6 + i % 6]));
}

TEST(Decode, PicksKnownTokenOrFirstMaximum) {
  std::vector<float> logits{1, 5, 5, 2, 7, 0, 7, 7};
  std::vector<uint32_t> tokens{9, 9}, positions{1, 1}, known{3, 2}, history(2 * 4, 77);
  RunItems("pick_token", 2,
           PickParameters{AddressOf(logits), 2, 4, AddressOf(tokens), AddressOf(positions),
                          AddressOf(history), 16, AddressOf(known)});
  EXPECT_EQ(tokens, (std::vector<uint32_t>{77, 0}));
  EXPECT_EQ(positions, (std::vector<uint32_t>{2, 2}));
  EXPECT_EQ(known, (std::vector<uint32_t>{3, 3}));
  EXPECT_EQ(history, (std::vector<uint32_t>{77, 77, 77, 77, 77, 77, 0, 77}));
}

TEST(Decode, AttentionReadsPagesUpToPosition) {
  constexpr uint64_t kRows = 2, kHeads = 4, kKv = 2, kDim = 6, kBlock = 3, kBlocks = 3, kMost = 9;
  Numbers numbers(4);
  const std::vector<uint32_t> positions{7, 0};
  std::vector<std::vector<float>> memory;
  std::vector<uint64_t> table;
  for (uint64_t i = 0; i < kRows * kKv * kBlocks; ++i) {
    memory.push_back(numbers.Floats(2 * kBlock * kDim));
    table.push_back(AddressOf(memory.back()));
  }
  table.back() = 0;  // a block that the second row has not reached
  const PagesOf pages{AddressOf(table), kKv, kBlocks, kBlock, kDim, AddressOf(positions)};
  const auto k = numbers.Floats(kRows * kKv * kDim), v = numbers.Floats(kRows * kKv * kDim);
  RunItems("kv_write", k.size(), KvWriteParameters{pages, AddressOf(k), AddressOf(v), kRows});
  const auto at = [&](uint64_t row, uint64_t head, uint64_t t, uint64_t part, uint64_t d) {
    return memory[(row * kKv + head) * kBlocks + t / kBlock]
                 [(part * kBlock + t % kBlock) * kDim + d];
  };
  EXPECT_EQ(at(0, 1, 7, 0, 2), k[kDim + 2]);
  EXPECT_EQ(at(1, 0, 0, 1, 5), v[kKv * kDim + 5]);

  const auto q = numbers.Floats(kRows * kHeads * kDim);
  std::vector<float> scores(kRows * kHeads * kMost), to(kRows * kHeads * kDim);
  const AttendParameters attend{
      pages,         AddressOf(q),      kRows, kHeads, kHeads / kKv, AddressOf(scores), kMost,
      AddressOf(to), kHeads * kDim * 4, 0.4f};
  RunItems("attend_scores", scores.size(), attend);
  RunItems("attend_mix", to.size(), attend);
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t head = 0; head < kHeads; ++head) {
      std::vector<double> weights;
      for (uint64_t t = 0; t <= positions[row]; ++t) {
        double score = 0;
        for (uint64_t d = 0; d < kDim; ++d) {
          score +=
              static_cast<double>(q[(row * kHeads + head) * kDim + d]) * at(row, head / 2, t, 0, d);
        }
        weights.push_back(std::exp(0.4 * score));
      }
      const double norm = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (uint64_t d = 0; d < kDim; ++d) {
        double sum = 0;
        for (uint64_t t = 0; t < weights.size(); ++t) {
          sum += weights[t] / norm * at(row, head / 2, t, 1, d);
        }
        EXPECT_NEAR(to[(row * kHeads + head) * kDim + d], sum, 1e-5);
      }
    }
  }
}

TEST(Decode, RoutesToTopExpertsWithSoftmaxWeights) {
  const std::vector<float> logits{1, 3, 3, -2, 0, 5, 0.5f, 2};
  std::vector<Choice> choices(2 * 3);
  RunItems("route", 2, RouteParameters{AddressOf(choices), AddressOf(logits), 2, 4, 3});
  const std::vector<uint32_t> wanted{1, 2, 0, 1, 3, 2};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(choices[i].expert, wanted[i]);
  const double norm = 1 + std::exp(-3.0) + std::exp(-4.5);
  EXPECT_NEAR(choices[3].weight, 1 / norm, 1e-6);
  EXPECT_NEAR(choices[5].weight, std::exp(-4.5) / norm, 1e-6);
  EXPECT_EQ(choices[0].weight, choices[1].weight);
}

// Ranks with some whole experts each, or with a part of each expert, add up to one rank that has
// all.
TEST(Decode, SumsOfRanksMatchForWholeAndSlicedExperts) {
  constexpr uint64_t kRows = 3, kTop = 2, kExperts = 4, kHidden = 10, kInner = 6;
  Numbers numbers(5);
  const auto x = numbers.Floats(kRows * kHidden);
  std::vector<std::vector<uint16_t>> slabs;
  for (uint64_t e = 0; e < kExperts; ++e) slabs.push_back(numbers.Bf16(3 * kInner * kHidden));
  const std::vector<Choice> choices{{0, .5f}, {3, .5f}, {1, .9f}, {2, .1f}, {3, .7f}, {0, .3f}};
  std::vector<double> wanted(kRows * kHidden);
  for (uint64_t i = 0; i < choices.size(); ++i) {
    const auto& slab = slabs[choices[i].expert];
    for (uint64_t n = 0; n < kInner; ++n) {
      double gate = 0, up = 0;
      for (uint64_t h = 0; h < kHidden; ++h) {
        gate += Of(slab[n * kHidden + h]) * x[i / kTop * kHidden + h];
        up += Of(slab[(kInner + n) * kHidden + h]) * x[i / kTop * kHidden + h];
      }
      for (uint64_t h = 0; h < kHidden; ++h) {
        wanted[i / kTop * kHidden + h] += choices[i].weight * (gate / (1 + std::exp(-gate)) * up) *
                                          Of(slab[2 * kInner * kHidden + h * kInner + n]);
      }
    }
  }
  const auto run = [&](const std::vector<uint64_t>& places, uint64_t inner) {
    std::vector<float> acts(kRows * kTop * inner), to(kRows * kHidden, 99);
    const ExpertParameters p{AddressOf(choices), kRows,           kTop,
                             AddressOf(places),  kHidden,         inner,
                             AddressOf(x),       AddressOf(acts), AddressOf(to)};
    RunItems("expert_up", acts.size(), p);
    RunItems("expert_down", to.size(), p);
    return to;
  };
  // Rank r has the experts e with e % 2 == r; then the r-th half of each.
  std::vector<double> whole(wanted.size()), sliced(wanted.size());
  for (uint64_t r = 0; r < 2; ++r) {
    std::vector<uint64_t> places(kExperts), half_places;
    std::vector<std::vector<uint16_t>> halves;
    for (uint64_t e = 0; e < kExperts; ++e) {
      if (e % 2 == r) places[e] = AddressOf(slabs[e]);
      auto& half = halves.emplace_back();
      const uint64_t n = kInner / 2, of_part = kInner * kHidden;
      for (uint64_t part = 0; part < 2; ++part) {
        const auto begin = slabs[e].begin() + static_cast<long>(part * of_part + r * n * kHidden);
        half.insert(half.end(), begin, begin + n * kHidden);
      }
      for (uint64_t h = 0; h < kHidden; ++h) {
        const auto begin = slabs[e].begin() + static_cast<long>(2 * of_part + h * kInner + r * n);
        half.insert(half.end(), begin, begin + n);
      }
    }
    for (const auto& half : halves) half_places.push_back(AddressOf(half));
    const auto a = run(places, kInner), b = run(half_places, kInner / 2);
    for (size_t i = 0; i < wanted.size(); ++i) {
      whole[i] += a[i];
      sliced[i] += b[i];
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(whole[i], wanted[i], 1e-4);
    EXPECT_NEAR(sliced[i], wanted[i], 1e-4);
  }
}

}  // namespace
}  // namespace tangram::kernels
