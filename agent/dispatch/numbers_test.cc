#include "agent/dispatch/numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "agent/dispatch/numbers_kernel.h"
#include "kernels/fp8.h"

namespace tangram::dispatch {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float OfFp8(uint8_t value) { return std::bit_cast<float>(kernels::FromFp8(value)); }

// The numbers of e4m3 by the table of the paper.
double ByTheTable(uint8_t value) {
  const int exponent = value >> 3 & 15, mantissa = value & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return value & 0x80 ? -magnitude : magnitude;
}

TEST(Fp8, DecodesAndReencodesEveryCode) {
  for (int v = 0; v < 256; ++v) {
    const auto value = static_cast<uint8_t>(v);
    if ((v & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(OfFp8(value)));
      continue;
    }
    EXPECT_EQ(OfFp8(value), ByTheTable(value)) << v;
    EXPECT_EQ(kernels::ToFp8(kernels::FromFp8(value)), value) << v;
  }
}

TEST(Fp8, RoundsToNearestEven) {
  // Between any two neighbours: below, at and above the middle.
  for (uint8_t v = 0; v < 0x7e; ++v) {
    const float low = OfFp8(v), high = OfFp8(static_cast<uint8_t>(v + 1)),
                middle = (low + high) / 2;
    EXPECT_EQ(kernels::ToFp8(Bits(std::nextafter(middle, 0.0f))), v) << int{v};
    EXPECT_EQ(kernels::ToFp8(Bits(std::nextafter(middle, 1e9f))), v + 1) << int{v};
    EXPECT_EQ(kernels::ToFp8(Bits(middle)), v % 2 == 0 ? v : v + 1) << int{v};
    EXPECT_EQ(kernels::ToFp8(Bits(-middle)), (v % 2 == 0 ? v : v + 1) | 0x80) << int{v};
  }
  EXPECT_EQ(kernels::ToFp8(Bits(460.0f)), 0x7e);
  EXPECT_EQ(kernels::ToFp8(Bits(1e30f)), 0x7e);
  EXPECT_EQ(kernels::ToFp8(Bits(std::numeric_limits<float>::infinity())), 0x7e);
  EXPECT_EQ(kernels::ToFp8(Bits(std::nanf(""))) & 0x7f, 0x7f);
  EXPECT_EQ(kernels::ToFp8(Bits(1e-30f)), 0);
}

TEST(Numbers, QuantizesFp8RowWithinOneSixteenth) {
  std::mt19937 draw(1);
  std::normal_distribution<float> normal;
  for (const uint32_t hidden : {1u, 127u, 128u, 129u, 1000u, 7168u}) {
    std::vector<float> row(hidden), back(hidden);
    for (float& v : row) v = normal(draw) * 100;
    std::vector<uint8_t> quantised(RowBytes(Element::kFp8, hidden));
    Convert(Element::kF32, row.data(), hidden, Element::kFp8, quantised.data());
    ToFloat(Element::kFp8, quantised.data(), hidden, back.data());
    for (uint32_t begin = 0; begin < hidden; begin += 128) {
      float most = 0;
      const uint32_t end = std::min(hidden, begin + 128);
      for (uint32_t i = begin; i < end; ++i) most = std::max(most, std::abs(row[i]));
      // Half a unit of the last of three bits; for subnormal numbers, of the smallest unit.
      for (uint32_t i = begin; i < end; ++i)
        EXPECT_LE(std::abs(back[i] - row[i]),
                  std::max(std::abs(row[i]) / 16, most / 448 / 1024) * 1.0001f)
            << hidden << " " << i;
    }
  }
}

TEST(Numbers, QuantizesZeroOrTinyBlockToZeros) {
  for (const float value : {0.0f, 1e-40f}) {
    const std::vector<float> row(128, value);
    std::vector<uint8_t> quantised(RowBytes(Element::kFp8, 128));
    std::vector<float> back(128, 9);
    Convert(Element::kF32, row.data(), 128, Element::kFp8, quantised.data());
    ToFloat(Element::kFp8, quantised.data(), 128, back.data());
    EXPECT_EQ(back, std::vector<float>(128, 0));
  }
}

TEST(Numbers, RoundsBf16ToNearestEven) {
  const std::vector<float> row{
      1.0f,         1.00390625f, 1.01171875f, -3.14159f, std::numeric_limits<float>::infinity(),
      std::nanf("")};
  std::vector<uint16_t> halves(row.size());
  Convert(Element::kF32, row.data(), 6, Element::kBf16, halves.data());
  EXPECT_EQ(halves[0], 0x3f80);
  EXPECT_EQ(halves[1], 0x3f80) << "half way, down to even";
  EXPECT_EQ(halves[2], 0x3f82) << "half way, up to even";
  EXPECT_EQ(halves[3], 0xc049);
  EXPECT_EQ(halves[4], 0x7f80);
  EXPECT_GT(halves[5] & 0x7fff, 0x7f80);
}

TEST(Numbers, EveryInstructionSetHasTheSameBits) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return;
  std::mt19937 draw(2);
  std::normal_distribution<float> normal;
  for (const size_t count : {1u, 7u, 16u, 333u, 7168u}) {
    std::vector<float> row(count), start(count);
    std::vector<uint16_t> halves(count);
    std::vector<int64_t> fixed(count);
    for (size_t i = 0; i < count; ++i) {
      row[i] = std::bit_cast<float>(static_cast<uint32_t>(draw()));
      if (i % 3 == 0) row[i] = normal(draw);
      start[i] = normal(draw);
      halves[i] = static_cast<uint16_t>(draw());
      fixed[i] = static_cast<int64_t>(uint64_t{draw()} << 32 | draw());
    }
    const auto with = [&](const NumbersKernel& k) {
      std::vector<uint32_t> bits;
      const auto keep = [&](const std::vector<float>& of) {
        for (const float v : of) bits.push_back(std::isnan(v) ? 1 : Bits(v));
      };
      std::vector<float> to = start;
      std::vector<uint16_t> rounded(count);
      const float* const floats[] = {row.data(), start.data()};
      const uint16_t* const both[] = {halves.data(), halves.data()};
      k.sum_f32(floats, 2, count, to.data());
      keep(to);
      k.sum_bf16(both, 2, count, rounded.data());
      bits.insert(bits.end(), rounded.begin(), rounded.end());
      const float weights[] = {0.7f, 1.3f};
      // Prefetching for the next sum does not change this one.
      k.weigh_f32(floats, weights, 2, floats, 2, count, to.data());
      keep(to);
      k.weigh_bf16_to_f32(both, weights, 2, both, 1, count, to.data());
      keep(to);
      k.weigh_bf16(both, weights, 2, nullptr, 0, count, rounded.data());
      bits.insert(bits.end(), rounded.begin(), rounded.end());
      k.to_bf16(row.data(), count, rounded.data());
      bits.insert(bits.end(), rounded.begin(), rounded.end());
      keep({k.largest(row.data(), count)});
      std::vector<uint8_t> small(count);
      k.to_fp8(row.data(), 3, count, small.data());
      bits.insert(bits.end(), small.begin(), small.end());
      std::vector<int64_t> sums(count, 5);
      bits.push_back(k.weigh_fixed(start.data(), 0.3f, count, sums.data()));
      const int64_t* const wholes[] = {fixed.data(), sums.data()};
      std::vector<int64_t> whole(count);
      bits.push_back(k.sum_fixed(wholes, 2, count, whole.data()));
      sums.insert(sums.end(), whole.begin(), whole.end());
      for (const int64_t v : sums) {
        bits.push_back(static_cast<uint32_t>(v));
        bits.push_back(static_cast<uint32_t>(static_cast<uint64_t>(v) >> 32));
      }
      return bits;
    };
    EXPECT_EQ(with(kNumbersBase), with(kNumbersAvx2)) << count;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      EXPECT_EQ(with(kNumbersBase), with(kNumbersAvx512)) << count;
  }
#endif
}

TEST(Numbers, ReportsFixedPointOverflow) {
  const float big = 1 << 18, small = 1;
  int64_t out = 0;
  const Weighted much{&big, 1}, little{&small, 0.5f};
  EXPECT_FALSE(Partial(Element::kF32, std::span(&much, 1), 1, Element::kFixed, &out));
  EXPECT_TRUE(Partial(Element::kF32, std::span(&little, 1), 1, Element::kFixed, &out));
  EXPECT_EQ(out, int64_t{1} << 39);
  const int64_t most = std::numeric_limits<int64_t>::max() - (int64_t{1} << 39);
  int64_t sum = 0;
  EXPECT_TRUE(Sum(Element::kFixed, std::vector<const void*>{&most, &out}, 1, &sum));
  EXPECT_EQ(sum, std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(Sum(Element::kFixed, std::vector<const void*>{&most, &out, &out}, 1, &sum));
}

// Computed number by number, without optimization.
TEST(Numbers, SumsRowsInOrder) {
  std::mt19937 draw(5);
  std::normal_distribution<float> normal;
  for (const uint32_t hidden : {1u, 63u, 64u, 200u}) {
    for (size_t count = 0; count < 5; ++count) {
      std::vector<std::vector<float>> floats(count, std::vector<float>(hidden));
      std::vector<std::vector<uint16_t>> halves(count, std::vector<uint16_t>(hidden));
      std::vector<std::vector<int64_t>> fixed(count, std::vector<int64_t>(hidden));
      std::vector<const void*> as_floats, as_halves, as_fixed;
      for (size_t r = 0; r < count; ++r) {
        for (uint32_t i = 0; i < hidden; ++i) {
          floats[r][i] = normal(draw) * static_cast<float>(uint64_t{1} << draw() % 40);
          Convert(Element::kF32, &floats[r][i], 1, Element::kBf16, &halves[r][i]);
          fixed[r][i] = static_cast<int64_t>(draw()) - (int64_t{1} << 31);
        }
        as_floats.push_back(floats[r].data());
        as_halves.push_back(halves[r].data());
        as_fixed.push_back(fixed[r].data());
      }
      std::vector<float> of_floats(hidden, 9);
      std::vector<uint16_t> of_halves(hidden, 9);
      std::vector<int64_t> of_fixed(hidden, 9);
      EXPECT_TRUE(Sum(Element::kF32, as_floats, hidden, of_floats.data()));
      EXPECT_TRUE(Sum(Element::kBf16, as_halves, hidden, of_halves.data()));
      EXPECT_TRUE(Sum(Element::kFixed, as_fixed, hidden, of_fixed.data()));
      for (uint32_t i = 0; i < hidden; ++i) {
        float sum = 0, of_rounded = 0;
        int64_t whole = 0;
        for (size_t r = 0; r < count; ++r) {
          float half = 0;
          ToFloat(Element::kBf16, &halves[r][i], 1, &half);
          sum += floats[r][i];
          of_rounded += half;
          whole += fixed[r][i];
        }
        uint16_t rounded = 0;
        Convert(Element::kF32, &of_rounded, 1, Element::kBf16, &rounded);
        ASSERT_EQ(std::bit_cast<uint32_t>(of_floats[i]), std::bit_cast<uint32_t>(sum));
        ASSERT_EQ(of_halves[i], rounded);
        ASSERT_EQ(of_fixed[i], whole);
      }
    }
  }
}

TEST(Numbers, CopiesRowPastCachesByteForByte) {
  std::vector<uint8_t> from(1003), to(2048, 0);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7);
  for (size_t at = 0; at < 33; ++at) {
    std::fill(to.begin(), to.end(), 0);
    Stream(from.data(), from.size(), to.data() + at);
    EndStreams();
    EXPECT_EQ(std::memcmp(to.data() + at, from.data(), from.size()), 0) << at;
    EXPECT_EQ(to[at + from.size()], 0);
  }
}

}  // namespace
}  // namespace tangram::dispatch
