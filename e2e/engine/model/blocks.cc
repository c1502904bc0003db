// Converts rows of weights of any dtype to fp32.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "e2e/engine/model/kernels.h"

namespace tangram::model {
namespace {

// F8_E4M3 (Micikevicius et al., arXiv:2209.05433): a sign, 4 bits of exponent with bias 7, 3 of
// mantissa; no infinities, and one NaN of each sign.
constexpr float OfCode(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return __builtin_nanf("");
  // Below 2^-6 the mantissa counts 2^-9; else the exponent is that of fp32, 120 further down.
  const float size = exponent == 0 ? static_cast<float>(mantissa) / 512
                                   : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  return (code & 128) != 0 ? -size : size;
}

constexpr std::array<float, 256> kOfCode = [] {
  std::array<float, 256> out{};
  for (uint32_t code = 0; code < 256; ++code) out[code] = OfCode(code);
  return out;
}();

float ScaleAt(const Scales& scales, uint32_t row, uint32_t block) {
  const size_t at = size_t{(scales.row + row) / kScaleBlock} * scales.stride + block;
  float out;
  ToFloat(static_cast<const std::byte*>(scales.data) + at * SizeOf(scales.dtype), scales.dtype, 1,
          &out);
  return out;
}

}  // namespace

void ToFloat(const void* data, DType dtype, size_t n, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, data, n * sizeof *out);
    return;
  }
  const auto* bits = static_cast<const uint16_t*>(data);
  for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{bits[i]} << 16);
}

void ToFloat(const Matrix& m, float* out) {
  for (uint32_t r = 0; r < m.rows; ++r, out += m.cols) {
    const auto* row = static_cast<const std::byte*>(m.data) + r * m.stride * SizeOf(m.dtype);
    if (m.dtype != DType::kFp8) {
      ToFloat(row, m.dtype, m.cols, out);
      continue;
    }
    for (uint32_t c = 0; c < m.cols;) {
      const uint32_t block = (m.scales.col + c) / kScaleBlock;
      const uint32_t end = std::min(m.cols, (block + 1) * kScaleBlock - m.scales.col);
      const float scale = ScaleAt(m.scales, r, block);
      for (; c < end; ++c) out[c] = kOfCode[std::to_integer<uint8_t>(row[c])] * scale;
    }
  }
}

}  // namespace tangram::model
