// Weights in place: the model never copies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tangram::model {

// Values as in tangram.v1.DType. kFp8: F8_E4M3 with a scale for each block of 128 x 128.
enum class DType : uint32_t { kF32 = 1, kBf16 = 2, kFp8 = 3 };

inline size_t SizeOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kBf16 ? 2 : 1;
}

// A tensor of the dense region, as in tg_tensor.
struct DenseTensor {
  std::string name;  // as in the checkpoint
  DType dtype = DType::kBf16;
  std::vector<uint64_t> shape;
  const void* data = nullptr;  // row-major; must outlive the model
};

constexpr uint32_t kScaleBlock = 128;
constexpr uint32_t ScaleBlocks(uint32_t size) { return (size + kScaleBlock - 1) / kScaleBlock; }

// Factors of an FP8 matrix: one for each block of the whole matrix.
struct Scales {
  const void* data = nullptr;  // [ScaleBlocks(rows), stride] of the whole
  DType dtype = DType::kF32;   // kF32 or kBf16
  uint32_t stride = 0;
  uint32_t row = 0, col = 0;  // offset of the matrix in the whole one
};

// A matrix [rows, cols], row-major, `stride` elements from row to row.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  uint32_t rows = 0;
  uint32_t cols = 0;
  size_t stride = 0;
  Scales scales = {};  // of kFp8

  // Columns [begin, begin + count) of every row.
  Matrix Columns(uint32_t begin, uint32_t count) const {
    Matrix out = *this;
    out.data = static_cast<const std::byte*>(data) + begin * SizeOf(dtype);
    out.cols = count;
    out.scales.col += begin;
    return out;
  }
  // Rows [begin, begin + count).
  Matrix Rows(uint32_t begin, uint32_t count) const {
    Matrix out = *this;
    out.data = static_cast<const std::byte*>(data) + begin * stride * SizeOf(dtype);
    out.rows = count;
    out.scales.row += begin;
    return out;
  }
};

}  // namespace tangram::model
