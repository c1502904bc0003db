#include "agent/loader/transpose.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/device/runs.h"

namespace tangram::loader {
namespace {

// Rows of the source that form one cache line of a row of the target.
constexpr uint64_t kLine = 64;

template <typename T>
struct Square {
  static constexpr size_t kSide = 16 / sizeof(T);
  using Row [[gnu::vector_size(16)]] = T;
  struct Rows {
    Row at[kSide];
  };

  // a0 b0 a1 b1 ... of the lower halves, then of the upper ones.
  template <size_t... I>
  static Row Zip(Row a, Row b, size_t from, std::index_sequence<I...>) {
    return from == 0 ? __builtin_shufflevector(a, b, (I / 2 + I % 2 * kSide)...)
                     : __builtin_shufflevector(a, b, (kSide / 2 + I / 2 + I % 2 * kSide)...);
  }
  template <size_t... I>
  static Rows Round(const Rows& rows, std::index_sequence<I...>) {
    constexpr std::make_index_sequence<kSide> all;
    return {{Zip(rows.at[I / 2], rows.at[I / 2 + kSide / 2], I % 2, all)...}};
  }
  // Zipping row i with row i + side / 2 rotates the bits of (row, column) by one. After as many
  // rounds as an index has bits, rows are columns (Stone, "Parallel Processing with the Perfect
  // Shuffle", IEEE Trans. Computers C-20, 1971).
  template <size_t... I>
  static void Turn(ConstMatrix from, Matrix to, std::index_sequence<I...> all) {
    Rows rows;
    (std::memcpy(&rows.at[I], from.data + I * from.pitch, 16), ...);
    for (size_t side = 1; side < kSide; side *= 2) rows = Round(rows, all);
    (std::memcpy(to.data + I * to.pitch, &rows.at[I], 16), ...);
  }
};

template <typename T>
void One(ConstMatrix from, uint64_t r, uint64_t c, Matrix to) {
  std::memcpy(to.Row(c) + r * sizeof(T), from.data + r * from.pitch + c * sizeof(T), sizeof(T));
}

// Writes a line of the target past the caches: the target is far larger than they are, and a line
// that is written whole need not be fetched first.
void Stream(const std::byte* line, std::byte* to) {
#ifdef __SSE2__
  for (uint64_t i = 0; i < kLine; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + i)));
  }
#else
  std::memcpy(to, line, kLine);
#endif
}

// Later writes become visible only after the streamed lines.
void EndStreams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

template <typename T>
void Tiled(ConstMatrix from, uint64_t rows, uint64_t columns, Matrix to) {
  constexpr uint64_t kSide = Square<T>::kSide, kTile = kLine / sizeof(T);
  constexpr std::make_index_sequence<kSide> all;
  const uint64_t whole_rows = rows / kSide * kSide, whole_columns = columns / kSide * kSide;
  const bool aligned = (reinterpret_cast<uintptr_t>(to.data) | to.pitch | to.apart) % 16 == 0;
  alignas(kLine) std::byte lines[kSide * kLine];
  for (uint64_t r0 = 0; r0 < whole_rows; r0 += kTile) {
    const uint64_t r1 = std::min(whole_rows, r0 + kTile);
    const bool streams = aligned && r1 - r0 == kTile;
    const bool direct = !streams && to.ways == 1;
    const uint64_t whole = (r1 - r0) * sizeof(T);
    for (uint64_t c = 0; c < whole_columns; c += kSide) {
      const Matrix tile =
          direct ? Matrix{to.Row(c) + r0 * sizeof(T), to.pitch} : Matrix{lines, kLine};
      for (uint64_t r = r0; r < r1; r += kSide) {
        Square<T>::Turn({from.data + r * from.pitch + c * sizeof(T), from.pitch},
                        {tile.data + (r - r0) * sizeof(T), tile.pitch}, all);
      }
      for (uint64_t i = 0; !direct && i < kSide; ++i) {
        std::byte* const there = to.Row(c + i) + r0 * sizeof(T);
        if (streams) {
          Stream(&lines[i * kLine], there);
        } else {
          std::memcpy(there, &lines[i * kLine], whole);
        }
      }
    }
  }
  EndStreams();
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) One<T>(from, r, c, to);
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

void CopyRows(ConstMatrix from, uint64_t rows, uint64_t bytes, Matrix to) {
  if ((reinterpret_cast<uintptr_t>(to.data) | to.pitch | bytes) % kLine != 0) {
    const auto strip = [&](const std::byte* data, uint64_t pitch) {
      return device::Strip{reinterpret_cast<uint64_t>(data), rows, bytes, pitch};
    };
    return device::CopyLines(strip(to.data, to.pitch), strip(from.data, from.pitch));
  }
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t at = 0; at < bytes; at += kLine) {
      Stream(from.data + r * from.pitch + at, to.data + r * to.pitch + at);
    }
  }
  EndStreams();
}

}  // namespace tangram::loader
