#include "agent/loader/transpose.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tangram::loader {
namespace {

TEST(Transpose, WritesEveryElementAndNoOtherByte) {
  std::mt19937_64 draw(2);
  for (int round = 0; round < 300; ++round) {
    const uint64_t element = uint64_t{1} << (draw() % 4);
    const uint64_t rows = 1 + draw() % 90, columns = 1 + draw() % 90;
    const uint64_t in_pitch = (columns + draw() % 5) * element;
    const uint64_t out_pitch = (rows + draw() % 5) * element;
    const uint64_t ways = 1 + draw() % 3;
    const uint64_t apart = (columns / ways + 1) * out_pitch + draw() % 3 * element;
    std::vector<std::byte> in(rows * in_pitch), out(ways * apart, std::byte{0x77});
    for (std::byte& b : in) b = std::byte(draw() & 0xff);
    std::vector<std::byte> want = out;
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t c = 0; c < columns; ++c) {
        std::memcpy(&want[c % ways * apart + c / ways * out_pitch + r * element],
                    &in[r * in_pitch + c * element], element);
      }
    }
    Transpose({in.data(), in_pitch}, rows, columns, element, {out.data(), out_pitch, ways, apart});
    ASSERT_EQ(out, want) << rows << " x " << columns << " of " << element << ", " << ways
                         << " ways";
  }
}

TEST(CopyRows, WritesEveryByteAndNoOther) {
  std::mt19937_64 draw(3);
  for (int round = 0; round < 300; ++round) {
    const uint64_t unit = round % 2 == 0 ? 64 : 1 + draw() % 40;  // whole lines, or none
    const uint64_t rows = 1 + draw() % 40, bytes = (1 + draw() % 5) * unit;
    const uint64_t in_pitch = bytes + draw() % 5, out_pitch = bytes + draw() % 3 * unit;
    std::vector<std::byte> in(rows * in_pitch), out(rows * out_pitch + 64, std::byte{0x77});
    for (std::byte& b : in) b = std::byte(draw() & 0xff);
    std::byte* to = out.data();
    while (reinterpret_cast<uintptr_t>(to) % 64 != 0) ++to;
    std::vector<std::byte> want = out;
    for (uint64_t r = 0; r < rows; ++r) {
      std::memcpy(&want[static_cast<size_t>(to - out.data()) + r * out_pitch], &in[r * in_pitch],
                  bytes);
    }
    CopyRows({in.data(), in_pitch}, rows, bytes, {to, out_pitch});
    ASSERT_EQ(out, want) << rows << " rows of " << bytes;
  }
}

}  // namespace
}  // namespace tangram::loader
