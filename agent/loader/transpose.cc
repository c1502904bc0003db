#include "agent/loader/transpose.h"

#include <algorithm>
#include <cstring>

namespace tangram::loader {
namespace {

// Rows of the source by columns: one line of the cache of each row of both.
constexpr uint64_t kLine = 64;

template <typename T>
void Tiled(ConstMatrix from, uint64_t rows, uint64_t columns, Matrix to) {
  constexpr uint64_t kTile = kLine / sizeof(T);
  for (uint64_t r0 = 0; r0 < rows; r0 += kTile) {
    const uint64_t r1 = std::min(rows, r0 + kTile);
    for (uint64_t c0 = 0; c0 < columns; c0 += kTile) {
      const uint64_t c1 = std::min(columns, c0 + kTile);
      for (uint64_t c = c0; c < c1; ++c) {
        std::byte* out = to.data + c * to.pitch;
        const std::byte* in = from.data + c * sizeof(T);
        for (uint64_t r = r0; r < r1; ++r) {
          std::memcpy(out + r * sizeof(T), in + r * from.pitch, sizeof(T));
        }
      }
    }
  }
}

}  // namespace

void Transpose(ConstMatrix from, uint64_t rows, uint64_t columns, uint64_t element, Matrix to) {
  switch (element) {
    case 1:
      return Tiled<uint8_t>(from, rows, columns, to);
    case 2:
      return Tiled<uint16_t>(from, rows, columns, to);
    case 4:
      return Tiled<uint32_t>(from, rows, columns, to);
    default:
      return Tiled<uint64_t>(from, rows, columns, to);
  }
}

}  // namespace tangram::loader
