// Weights in place: the model never copies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tangram::model {

// Values as in tangram.v1.DType.
enum class DType : uint32_t { kF32 = 1, kBf16 = 2 };

inline size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// A tensor of the dense region, as tg_tensor gives it.
struct DenseTensor {
  std::string name;  // as in the checkpoint
  DType dtype = DType::kBf16;
  std::vector<uint64_t> shape;
  const void* data = nullptr;  // row-major; must outlive the model
};

// A matrix [rows, cols], row-major, `stride` elements from row to row.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  uint32_t rows = 0;
  uint32_t cols = 0;
  size_t stride = 0;

  // Columns [begin, begin + count) of every row.
  Matrix Columns(uint32_t begin, uint32_t count) const {
    return {static_cast<const std::byte*>(data) + begin * SizeOf(dtype), dtype, rows, count,
            stride};
  }
  // Rows [begin, begin + count).
  Matrix Rows(uint32_t begin, uint32_t count) const {
    return {static_cast<const std::byte*>(data) + begin * stride * SizeOf(dtype), dtype, count,
            cols, stride};
  }
};

}  // namespace tangram::model
