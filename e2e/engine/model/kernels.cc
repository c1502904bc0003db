#include "e2e/engine/model/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace tangram::model {
namespace {

constexpr size_t kLanes = 16;
// Two halves of the width of the instruction set: the compiler would split one vector of 16 through
// memory.
using Half = float __attribute__((vector_size(32)));
using HalfBits = uint32_t __attribute__((vector_size(32)));
using HalfBf16 = uint16_t __attribute__((vector_size(16)));
using Quarter = float __attribute__((vector_size(16)));
struct Lanes {
  Half low, high;
};

#define TANGRAM_INLINE inline __attribute__((always_inline))

struct F32 {
  using Element = float;
  static TANGRAM_INLINE void Load(const Element* p, Lanes& out) {
    std::memcpy(&out.low, p, sizeof out.low);
    std::memcpy(&out.high, p + kLanes / 2, sizeof out.high);
  }
};

struct Bf16 {
  using Element = uint16_t;
  static TANGRAM_INLINE void LoadHalf(const Element* p, Half& out) {
    HalfBf16 bf16;
    std::memcpy(&bf16, p, sizeof bf16);
    const HalfBits bits = __builtin_convertvector(bf16, HalfBits) << 16;
    out = reinterpret_cast<Half>(bits);
  }
  static TANGRAM_INLINE void Load(const Element* p, Lanes& out) {
    LoadHalf(p, out.low);
    LoadHalf(p + kLanes / 2, out.high);
  }
};

TANGRAM_INLINE void AddProduct(const Lanes& a, const Lanes& b, Lanes& acc) {
  acc.low += a.low * b.low;
  acc.high += a.high * b.high;
}

TANGRAM_INLINE void AddScaled(const Lanes& a, float s, Lanes& acc) {
  acc.low += a.low * s;
  acc.high += a.high * s;
}

// Loads the first n < kLanes elements, and zeros after them.
template <typename T>
TANGRAM_INLINE void LoadTail(const typename T::Element* p, size_t n, Lanes& out) {
  typename T::Element padded[kLanes] = {};
  std::memcpy(padded, p, n * sizeof padded[0]);
  T::Load(padded, out);
}

// The fixed tree: l + (l + 8), then + 4, + 2, + 1.
TANGRAM_INLINE float Reduce(const Lanes& lanes) {
  const Half eight = lanes.low + lanes.high;
  const Quarter four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                       __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const Quarter two = four + __builtin_shufflevector(four, four, 2, 3, 2, 3);
  return two[0] + two[1];
}

// W rows of weights times X rows of x.
template <typename T, size_t W, size_t X>
TANGRAM_INLINE void DotBlock(const typename T::Element* w, size_t w_stride, const float* x,
                             size_t x_stride, size_t n, float* out, size_t out_stride) {
  Lanes acc[W][X] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    Lanes xs[X];
    for (size_t b = 0; b < X; ++b) F32::Load(x + b * x_stride + i, xs[b]);
    for (size_t a = 0; a < W; ++a) {
      Lanes ws;
      T::Load(w + a * w_stride + i, ws);
      for (size_t b = 0; b < X; ++b) AddProduct(ws, xs[b], acc[a][b]);
    }
  }
  if (whole < n) {
    Lanes xs[X];
    for (size_t b = 0; b < X; ++b) LoadTail<F32>(x + b * x_stride + whole, n - whole, xs[b]);
    for (size_t a = 0; a < W; ++a) {
      Lanes ws;
      LoadTail<T>(w + a * w_stride + whole, n - whole, ws);
      for (size_t b = 0; b < X; ++b) AddProduct(ws, xs[b], acc[a][b]);
    }
  }
  for (size_t a = 0; a < W; ++a) {
    for (size_t b = 0; b < X; ++b) out[b * out_stride + a] = Reduce(acc[a][b]);
  }
}

// Each block of weight rows is read once for all x rows, X at a time.
template <typename T>
void MatMulOf(const Matrix& m, const float* x, size_t x_stride, size_t count, float* out,
              size_t out_stride) {
  const auto* w = static_cast<const typename T::Element*>(m.data);
  size_t r = 0;
  for (; r + 4 <= m.rows; r += 4) {
    const auto* rows = w + r * m.stride;
    size_t i = 0;
    for (; i + 2 <= count; i += 2) {
      for (size_t pair = 0; pair < 4; pair += 2) {
        DotBlock<T, 2, 2>(rows + pair * m.stride, m.stride, x + i * x_stride, x_stride, m.cols,
                          out + i * out_stride + r + pair, out_stride);
      }
    }
    if (i < count) {
      DotBlock<T, 4, 1>(rows, m.stride, x + i * x_stride, x_stride, m.cols,
                        out + i * out_stride + r, out_stride);
    }
  }
  for (; r < m.rows; ++r) {
    for (size_t i = 0; i < count; ++i) {
      DotBlock<T, 1, 1>(w + r * m.stride, m.stride, x + i * x_stride, x_stride, m.cols,
                        out + i * out_stride + r, out_stride);
    }
  }
}

// Columns [j, j + width) of the transposed product for X rows.
template <typename T, size_t X>
TANGRAM_INLINE void ColumnBlock(const Matrix& m, const float* x, size_t x_stride, size_t j,
                                size_t width, float* out, size_t out_stride) {
  const auto* w = static_cast<const typename T::Element*>(m.data) + j;
  Lanes acc[X] = {};
  for (size_t r = 0; r < m.rows; ++r) {
    Lanes ws;
    if (width == kLanes) {
      T::Load(w + r * m.stride, ws);
    } else {
      LoadTail<T>(w + r * m.stride, width, ws);
    }
    for (size_t b = 0; b < X; ++b) AddScaled(ws, x[b * x_stride + r], acc[b]);
  }
  for (size_t b = 0; b < X; ++b)
    std::memcpy(out + b * out_stride + j, &acc[b], width * sizeof *out);
}

template <typename T>
void TransposedOf(const Matrix& m, const float* x, size_t x_stride, size_t count, float* out,
                  size_t out_stride) {
  for (size_t j = 0; j < m.cols; j += kLanes) {
    const size_t width = std::min<size_t>(kLanes, m.cols - j);
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
      ColumnBlock<T, 4>(m, x + i * x_stride, x_stride, j, width, out + i * out_stride, out_stride);
    }
    for (; i < count; ++i) {
      ColumnBlock<T, 1>(m, x + i * x_stride, x_stride, j, width, out + i * out_stride, out_stride);
    }
  }
}

// Rows of an FP8 matrix that are converted to fp32 together, so that they stay in the cache.
constexpr uint32_t kPanelRows = 32;

// Uses thread-local memory, which the next call overwrites.
Matrix InFp32(const Matrix& w) {
  thread_local std::vector<float> panel;
  panel.resize(size_t{w.rows} * w.cols);
  ToFloat(w, panel.data());
  return {panel.data(), DType::kF32, w.rows, w.cols, w.cols};
}

}  // namespace

void MatMul(const Matrix& w, const float* x, size_t x_stride, size_t count, float* out,
            size_t out_stride) {
  switch (w.dtype) {
    case DType::kF32:
      return MatMulOf<F32>(w, x, x_stride, count, out, out_stride);
    case DType::kBf16:
      return MatMulOf<Bf16>(w, x, x_stride, count, out, out_stride);
    case DType::kFp8:
      if (count == 0) return;  // `out` may be null
      for (uint32_t r = 0; r < w.rows; r += kPanelRows) {
        const uint32_t rows = std::min(kPanelRows, w.rows - r);
        MatMulOf<F32>(InFp32(w.Rows(r, rows)), x, x_stride, count, out + r, out_stride);
      }
  }
}

void TransposedMatMul(const Matrix& w, const float* x, size_t x_stride, size_t count, float* out,
                      size_t out_stride) {
  switch (w.dtype) {
    case DType::kF32:
      return TransposedOf<F32>(w, x, x_stride, count, out, out_stride);
    case DType::kBf16:
      return TransposedOf<Bf16>(w, x, x_stride, count, out, out_stride);
    case DType::kFp8:  // converted as a whole: every column is a sum over all rows
      TransposedOf<F32>(InFp32(w), x, x_stride, count, out, out_stride);
  }
}

float Dot(const float* a, const float* b, size_t n) {
  float out;
  DotBlock<F32, 1, 1>(a, 0, b, 0, n, &out, 0);
  return out;
}

void Axpy(float s, const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += s * x[i];
}

void Scale(float s, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] *= s;
}

void RmsNorm(const float* x, const float* weight, float eps, size_t n, float* out) {
  const float mean = Dot(x, x, n) / static_cast<float>(n);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (size_t i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * inverse);
}

}  // namespace tangram::model
