// The arithmetic of the reference model, below the names of the network.
//
// Determinism: a dot product has 16 fp32 lanes, lane l sums the products of elements l, l + 16, ...
// in that order (a missing tail counts as zeros), and the lanes are added by a fixed tree: l and l
// + 8, then + 4, + 2, + 1. Nothing is contracted into fused operations (-ffp-contract=off). So a
// result depends only on its two vectors, not on alignment, the number of rows per call, or the
// compiler's choice of instructions. An FP8 matrix is computed with the fp32 numbers that ToFloat
// returns.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "e2e/engine/model/tensor.h"

namespace tangram::model {

// out[i * out_stride + r] = w[r] . x[i * x_stride ...] for `count` rows x of w.cols floats.
void MatMul(const Matrix& w, const float* x, size_t x_stride, size_t count, float* out,
            size_t out_stride);

// out[i * out_stride + j] = sum over r = 0 .. w.rows - 1, in that order, of x[i * x_stride + r] *
// w[r][j], from 0: the transposed product, for matrices stored by their inner dimension.
void TransposedMatMul(const Matrix& w, const float* x, size_t x_stride, size_t count, float* out,
                      size_t out_stride);

// a . b, n floats each.
float Dot(const float* a, const float* b, size_t n);

// y[i] += s * x[i]; y[i] *= s.
void Axpy(float s, const float* x, float* y, size_t n);
void Scale(float s, float* y, size_t n);

// out = weight * (x / sqrt(mean(x^2) + eps)), n floats. out may be x.
void RmsNorm(const float* x, const float* weight, float eps, size_t n, float* out);

// Converts n numbers of F32 or BF16 to fp32; bf16 is aligned.
void ToFloat(const void* data, DType dtype, size_t n, float* out);
// out [m.rows, m.cols]; for FP8, code times scale, rounded once.
void ToFloat(const Matrix& m, float* out);

// e^x, at most 2 units in the last place off; 0 below -87.3, +inf above 88.7. x - k ln 2 with ln 2
// in two parts (Cody and Waite, "Software manual for the elementary functions", 1980), then
// the Taylor polynomial of degree 7 on |r| <= ln(2) / 2. Inline and branch-free up to the
// limits, so that loops over it vectorise without changing a bit.
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: k * kLn2High is exact
  constexpr float kLn2Low = -2.12194440054690583e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  if (!(x > -87.3f)) return x != x ? x : 0.0f;
  if (x > 88.7f) return __builtin_inff();
  const float k = (x * kLog2E + kRound) - kRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  // Two factors, since 2^k alone leaves the range of fp32 at k = 128.
  const auto n = static_cast<int32_t>(k);
  const int32_t half = n / 2;
  const float a = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float b = std::bit_cast<float>(static_cast<uint32_t>(n - half + 127) << 23);
  return p * a * b;
}

// x * sigmoid(x).
inline float Silu(float x) { return x / (1.0f + Exp(-x)); }

}  // namespace tangram::model
