// Copies columns of a row-major matrix, transposed or as they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tangram::loader {

// Elements of 1, 2, 4 or 8 bytes; `pitch`: bytes from row to row.
struct ConstMatrix {
  const std::byte* data = nullptr;
  uint64_t pitch = 0;
};
// `ways` matrices of this pitch, `apart` bytes from one to the next: row c is row c / ways of
// matrix c % ways.
struct Matrix {
  std::byte* data = nullptr;
  uint64_t pitch = 0;
  uint64_t ways = 1, apart = 0;

  std::byte* Row(uint64_t c) const {
    return ways == 1 ? data + c * pitch : data + c % ways * apart + c / ways * pitch;
  }
};

// to[c][r] = from[r][c] for all r < rows, c < columns. Works in tiles of whole cache lines, which
// are transposed in registers and written past the caches; `from` should be cached.
void Transpose(ConstMatrix from, uint64_t rows, uint64_t columns, uint64_t element, Matrix to);

// to[r] = from[r] for all r < rows, `bytes` of each. Whole cache lines are written past the caches
// too. `to` has one way.
void CopyRows(ConstMatrix from, uint64_t rows, uint64_t bytes, Matrix to);

}  // namespace tangram::loader
