// Token counts, and sums of partials.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/partial_sums.h"
#include "kernels/testing/launch.h"

namespace tangram::kernels {
namespace {

using testing::AddressOf;

TEST(LoadHistogram, AddsEveryIdOnceToExistingCounts) {
  std::mt19937 random(1);
  for (const uint64_t experts : {1, 8, 256}) {
    std::vector<int32_t> ids(5000);
    std::vector<uint64_t> counts(experts + 1, 7), expected = counts;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % (experts + 4)) - 2;
      if (random() % 100 == 0) id = std::numeric_limits<int32_t>::max();
      if (id >= 0) ++expected[std::min<uint64_t>(static_cast<uint64_t>(id), experts)];
    }
    const LoadHistogramParameters parameters{AddressOf(ids), ids.size(), AddressOf(counts),
                                             experts};
    testing::Run("load_histogram", LoadHistogramLaunch(parameters, 6), parameters,
                 experts == 8 ? testing::Order::kBackwards : testing::Order::kForwards);
    EXPECT_EQ(counts, expected);
  }
}

// The processor's rounding is the reference.
int64_t Rounded(float value) { return std::llrint(std::ldexp(static_cast<double>(value), 40)); }

TEST(ToFixed, RoundsLikeProcessorAndRejectsOverflow) {
  std::mt19937 random(2);
  std::vector<uint32_t> bits;
  // Every exponent and sign, with the mantissas at their ends and in between.
  for (uint32_t top = 0; top < 512; ++top) {
    for (const uint32_t mantissa : {0u, 1u, 2u, 3u, 0x400000u, 0x3fffffu, 0x400001u, 0x7fffffu}) {
      bits.push_back(top << 23 | mantissa);
    }
    for (uint32_t bit = 0; bit < 23; ++bit) {  // ties, and the numbers next to them
      for (const uint32_t near : {0u, 1u, ~0u}) {
        bits.push_back(top << 23 | (((1u << bit) + near) & 0x7fffff));
        bits.push_back(top << 23 | (((3u << bit) + near) & 0x7fffff));
      }
    }
  }
  for (int i = 0; i < 200'000; ++i) bits.push_back(random());
  for (const uint32_t b : bits) {
    const auto value = std::bit_cast<float>(b);
    int64_t fixed = 0;
    const bool fits = std::fabs(value) < 262144.0f;  // false for NaN
    ASSERT_EQ(ToFixed(b, &fixed), fits) << value;
    if (fits) {
      ASSERT_EQ(fixed, Rounded(value)) << value;
    }
  }
}

struct Sums {
  std::vector<int64_t> sums;
  uint64_t bad = UINT64_MAX;
};

// Adds rows of `pitch` numbers, of which the first `elements` count.
void Add(const std::vector<float>& partials, uint64_t count, uint64_t pitch, uint32_t most_blocks,
         Sums* out) {
  const PartialSumsParameters parameters{
      AddressOf(partials),   count,
      pitch * sizeof(float), AddressOf(out->sums),
      out->sums.size(),      reinterpret_cast<uint64_t>(&out->bad)};
  testing::Run("partial_sums", PartialSumsLaunch(parameters, most_blocks), parameters,
               most_blocks % 2 == 0 ? testing::Order::kBackwards : testing::Order::kForwards);
}

TEST(PartialSums, AreIndependentOfOrderAndParts) {
  std::mt19937 random(3);
  constexpr uint64_t kElements = 700, kCount = 9, kPitch = 704;
  std::vector<float> partials(kCount * kPitch);
  std::uniform_real_distribution<float> draw(-1000, 1000);
  for (float& p : partials) p = random() % 8 == 0 ? draw(random) * 1e-9f : draw(random);
  Sums expected{std::vector<int64_t>(kElements, 11)};
  for (uint64_t i = 0; i < kElements; ++i) {
    for (uint64_t k = 0; k < kCount; ++k) expected.sums[i] += Rounded(partials[k * kPitch + i]);
  }
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<uint64_t> order{0, 1, 2, 3, 4, 5, 6, 7, 8};
    std::shuffle(order.begin(), order.end(), random);
    std::vector<float> shuffled;
    for (const uint64_t k : order) {
      const auto row = partials.begin() + static_cast<int64_t>(k * kPitch);
      shuffled.insert(shuffled.end(), row, row + kPitch);
    }
    Sums got{std::vector<int64_t>(kElements, 11)};
    const uint64_t first = random() % (kCount + 1);
    Add(shuffled, first, kPitch, 1 + random() % 4, &got);
    shuffled.erase(shuffled.begin(), shuffled.begin() + static_cast<int64_t>(first * kPitch));
    Add(shuffled, kCount - first, kPitch, 1, &got);
    ASSERT_EQ(got.sums, expected.sums);
    ASSERT_EQ(got.bad, UINT64_MAX);
  }
}

TEST(PartialSums, ReportFirstUnrepresentableElement) {
  std::vector<float> partials(1000, 1.0f);
  Sums sums{std::vector<int64_t>(1000, 0)};
  partials[700] = INFINITY;
  partials[333] = NAN;
  for (const uint32_t blocks : {1, 2}) {
    sums.bad = UINT64_MAX;
    Add(partials, 1, 1000, blocks, &sums);
    EXPECT_EQ(sums.bad, 333u);
  }
  // A sum that overflows, in either direction.
  const std::vector<float> one{0.5f}, minus{-0.5f};
  for (const int64_t at : {INT64_MAX, INT64_MIN}) {
    Sums edge{{at}};
    Add(at > 0 ? minus : one, 1, 1, 1, &edge);
    EXPECT_EQ(edge.bad, UINT64_MAX);
    Sums beyond{{at}};
    Add(at > 0 ? one : minus, 1, 1, 1, &beyond);
    EXPECT_EQ(beyond.bad, 0u);
  }
}

}  // namespace
}  // namespace tangram::kernels
