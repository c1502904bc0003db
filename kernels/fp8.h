// FP8 e4m3 (4 bits of exponent, 3 of mantissa, no infinity; "FP8 Formats for Deep Learning",
// arXiv:2209.05433), by integers and single exact operations of fp32, so host and device have the
// same bits. Blocks of numbers share an fp32 scale.
#pragma once

#include "kernels/memory.h"

namespace tangram::kernels {

constexpr float kFp8Most = 448;
constexpr uint32_t kFp8Block = 128;  // numbers of a row that share a scale
constexpr uint8_t kFp8Nan = 0x7f;

// Rounds the bits of an fp32 number to the nearest e4m3, ties to even. Numbers beyond the largest
// become the largest, NaN becomes kFp8Nan.
TANGRAM_DEVICE uint8_t ToFp8(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  // From 2^-6 on: drops 20 bits of mantissa, and changes the bias from 127 to 7.
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
  // Below, in units of 2^-9: half-way numbers round to the even one.
  const uint32_t exponent = magnitude >> 23, mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t down = exponent > 120 ? 21 : exponent > 116 ? 141 - exponent : 25;
  const uint32_t half = 1u << (down - 1), rest = mantissa & (2 * half - 1);
  const uint32_t kept = mantissa >> down;
  const uint32_t small = kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
  uint32_t out = magnitude >= 121u << 23 ? normal : small;
  if (magnitude >= 0x43e00000) out = 0x7e;  // 448
  if (magnitude > 0x7f800000) out = kFp8Nan;
  return static_cast<uint8_t>(sign | out);
}

// The bits of an fp32 number that has exactly this value.
TANGRAM_DEVICE uint32_t FromFp8(uint8_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x80) << 24;
  const uint32_t magnitude = value & 0x7f;
  if (magnitude == kFp8Nan) return sign | 0x7fc00000;
  if (magnitude >= 8) return sign | ((magnitude << 20) + (120u << 23));
  // m * 2^-9, m < 8.
  if (magnitude == 0) return sign;
  const uint32_t top = magnitude >= 4 ? 2 : magnitude >= 2 ? 1 : 0;
  return sign | (118 + top) << 23 | (magnitude << (23 - top) & 0x7fffff);
}

}  // namespace tangram::kernels
