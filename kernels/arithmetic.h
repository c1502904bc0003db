// Arithmetic of a decode step with the same bits on a GPU and on a host: each operation is rounded
// separately to fp32, to nearest, so a compiler may not fuse two of them.
#pragma once

#include <cstdint>

#include "kernels/memory.h"

#ifndef __CUDACC__
#include <bit>
#include <cmath>
#endif

namespace tangram::kernels {

#ifdef __CUDACC__
TANGRAM_DEVICE float OfBits(uint32_t bits) { return __uint_as_float(bits); }
TANGRAM_DEVICE uint32_t BitsOf(float value) { return __float_as_uint(value); }
TANGRAM_DEVICE float Sum(float a, float b) { return __fadd_rn(a, b); }
TANGRAM_DEVICE float Product(float a, float b) { return __fmul_rn(a, b); }
TANGRAM_DEVICE float Quotient(float a, float b) { return __fdiv_rn(a, b); }
TANGRAM_DEVICE float Root(float a) { return __fsqrt_rn(a); }
#else
// The host build uses -ffp-contract=off.
inline float OfBits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline float Sum(float a, float b) { return a + b; }
inline float Product(float a, float b) { return a * b; }
inline float Quotient(float a, float b) { return a / b; }
inline float Root(float a) { return std::sqrt(a); }
#endif

TANGRAM_DEVICE float Difference(float a, float b) { return Sum(a, -b); }

template <typename Memory>
TANGRAM_DEVICE float LoadFloat(Memory& memory, uint64_t address) {
  return OfBits(memory.template Load<uint32_t>(address));
}
template <typename Memory>
TANGRAM_DEVICE void StoreFloat(Memory& memory, uint64_t address, float value) {
  memory.template Store<uint32_t>(address, BitsOf(value));
}
// bf16 is the upper half of fp32.
template <typename Memory>
TANGRAM_DEVICE float LoadBf16(Memory& memory, uint64_t address) {
  return OfBits(static_cast<uint32_t>(memory.template Load<uint16_t>(address)) << 16);
}

// Rounds to the nearest bf16, ties to even; NaN stays NaN.
TANGRAM_DEVICE uint16_t ToBf16(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// e^x within 2 units of the last place; 0 below -87, where the result would be subnormal, and
// e^88 above 88. x = n ln 2 + r with |r| <= ln 2 / 2, in two parts so that r is exact to fp32
// (Cody and Waite, 1980); e^r by its Taylor polynomial of degree 7.
TANGRAM_DEVICE float Exp(float x) {
  if (!(x > -87.0f)) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float scaled = Product(x, 1.44269504f);
  const auto n = static_cast<int32_t>(Sum(scaled, scaled < 0 ? -0.5f : 0.5f));
  const auto whole = static_cast<float>(n);
  float r = Difference(x, Product(whole, 0.693359375f));
  r = Difference(r, Product(whole, -2.12194440e-4f));
  float sum = 1.98412698e-4f;  // 1 / 7!
  const float terms[] = {
      1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f};
  TANGRAM_UNROLL
  for (int i = 0; i < 7; ++i) sum = Sum(Product(sum, r), terms[i]);
  return Product(sum, OfBits(static_cast<uint32_t>(n + 127) << 23));
}

// The sum of products of bf16 weights and fp32 numbers, in order.
template <typename Memory>
TANGRAM_DEVICE float Dot(Memory& memory, uint64_t weights, uint64_t numbers, uint64_t count) {
  float sum = 0;
  uint64_t i = 0;
  if (weights % 16 == 0 && numbers % 16 == 0) {
    for (; i + 8 <= count; i += 8) {
      const Word16 w = memory.template Load<Word16>(weights + 2 * i);
      const Word16 a = memory.template Read<Word16>(numbers + 4 * i);
      const Word16 b = memory.template Read<Word16>(numbers + 4 * i + 16);
      const uint64_t halves[2] = {w.low, w.high}, words[4] = {a.low, a.high, b.low, b.high};
      TANGRAM_UNROLL
      for (int k = 0; k < 8; ++k) {
        const auto bits = static_cast<uint32_t>(halves[k / 4] >> (16 * (k % 4)) & 0xffff) << 16;
        const auto number = static_cast<uint32_t>(words[k / 2] >> (32 * (k % 2)));
        sum = Sum(sum, Product(OfBits(bits), OfBits(number)));
      }
    }
  }
  for (; i < count; ++i) {
    const float number = OfBits(memory.template Read<uint32_t>(numbers + 4 * i));
    sum = Sum(sum, Product(LoadBf16(memory, weights + 2 * i), number));
  }
  return sum;
}

}  // namespace tangram::kernels
