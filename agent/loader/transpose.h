// Columns of a row-major matrix as rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tangram::loader {

// Elements of 1, 2, 4 or 8 bytes; pitches are bytes from row to row.
struct ConstMatrix {
  const std::byte* data = nullptr;
  uint64_t pitch = 0;
};
struct Matrix {
  std::byte* data = nullptr;
  uint64_t pitch = 0;
};

// to[c][r] = from[r][c] for all r < rows, c < columns. In tiles of whole lines of the cache, which
// are turned in registers and written past the caches: `from` should be in them.
void Transpose(ConstMatrix from, uint64_t rows, uint64_t columns, uint64_t element, Matrix to);

}  // namespace tangram::loader
