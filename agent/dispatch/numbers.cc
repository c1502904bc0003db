#include "agent/dispatch/numbers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "agent/dispatch/numbers_kernel.h"
#include "kernels/fp8.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tangram::dispatch {
namespace {

using kernels::kFp8Block;

const NumbersKernel& Kernel() {
#if defined(__x86_64__)
  static const NumbersKernel& kernel = __builtin_cpu_supports("avx512f") &&
                                               __builtin_cpu_supports("avx512bw") &&
                                               __builtin_cpu_supports("avx512vl")
                                           ? kNumbersAvx512
                                       : __builtin_cpu_supports("avx2") ? kNumbersAvx2
                                                                        : kNumbersBase;
  return kernel;
#else
  return kNumbersBase;
#endif
}

// Block of one thread's sums: a part of a row that stays in the nearest cache.
constexpr size_t kBlock = 1024;
constexpr size_t kLine = 64;

void ToFp8(const float* row, uint32_t hidden, uint8_t* out) {
  uint8_t* scales =
      out + RowBytes(Element::kFp8, hidden) - ScalesOf(Element::kFp8, hidden) * sizeof(float);
  for (uint32_t at = 0; at < hidden; at += kFp8Block, scales += sizeof(float)) {
    const uint32_t count = std::min(kFp8Block, hidden - at);
    const float most = Kernel().largest(row + at, count);
    // A smaller block has no finite inverse scale.
    const bool some = most > 0x1p-100f;
    const float scale = some ? most / kernels::kFp8Most : 1, inverse = some ? 1 / scale : 1;
    Kernel().to_fp8(row + at, inverse, count, out + at);
    std::memcpy(scales, &scale, sizeof scale);
  }
}

}  // namespace

const char* NameOf(Element element) {
  switch (element) {
    case Element::kF32:
      return "F32";
    case Element::kBf16:
      return "BF16";
    case Element::kFp8:
      return "FP8";
    case Element::kFixed:
      return "fixed point";
  }
  return "no element";
}

uint32_t ScalesOf(Element element, uint32_t hidden) {
  return element == Element::kFp8 ? (hidden + kFp8Block - 1) / kFp8Block : 0;
}

size_t RowBytes(Element element, uint32_t hidden) {
  const size_t numbers = hidden * BytesOf(element);
  if (element != Element::kFp8) return numbers;
  return (numbers + 3) / 4 * 4 + ScalesOf(element, hidden) * sizeof(float);
}

void Convert(Element from, const void* row, uint32_t hidden, Element to, void* out) {
  if (from == to) {
    std::memcpy(out, row, RowBytes(to, hidden));
  } else if (to == Element::kF32) {
    ToFloat(from, row, hidden, static_cast<float*>(out));
  } else {
    thread_local std::vector<float> numbers;
    const float* floats = static_cast<const float*>(row);
    if (from != Element::kF32) {
      numbers.resize(hidden);
      ToFloat(from, row, hidden, numbers.data());
      floats = numbers.data();
    }
    if (to == Element::kBf16) {
      Kernel().to_bf16(floats, hidden, static_cast<uint16_t*>(out));
    } else {
      ToFp8(floats, hidden, static_cast<uint8_t*>(out));
    }
  }
}

void ToFloat(Element from, const void* row, uint32_t hidden, float* out) {
  if (from == Element::kF32) {
    std::memcpy(out, row, hidden * sizeof(float));
  } else if (from == Element::kBf16) {
    Kernel().from_bf16(static_cast<const uint16_t*>(row), hidden, out);
  } else {
    const auto* numbers = static_cast<const uint8_t*>(row);
    const auto* scales = numbers + (hidden + 3) / 4 * 4;
    for (uint32_t i = 0; i < hidden; ++i) {
      const uint32_t bits = kernels::FromFp8(numbers[i]);
      float value, scale;
      std::memcpy(&value, &bits, sizeof value);
      std::memcpy(&scale, scales + i / kFp8Block * sizeof(float), sizeof scale);
      out[i] = value * scale;
    }
  }
}

bool Partial(Element outputs, std::span<const Weighted> rows, uint32_t hidden, Element sums,
             void* out, std::span<const Weighted> next) {
  if (sums == Element::kFixed) {
    bool good = true;
    auto* to = static_cast<int64_t*>(out);
    std::fill_n(to, hidden, int64_t{0});
    float numbers[kBlock];
    for (const Weighted& row : rows) {
      for (size_t at = 0; at < hidden; at += kBlock) {
        const size_t count = std::min(kBlock, hidden - at);
        const float* from = static_cast<const float*>(row.row) + at;
        if (outputs == Element::kBf16) {
          Kernel().from_bf16(static_cast<const uint16_t*>(row.row) + at, count, numbers);
          from = numbers;
        }
        good &= Kernel().weigh_fixed(from, row.weight, count, to + at);
      }
    }
    return good;
  }
  std::array<const void*, kMostRows> from, then;
  std::array<float, kMostRows> weights;
  for (size_t k = 0; k < rows.size(); ++k) {
    from[k] = rows[k].row;
    weights[k] = rows[k].weight;
  }
  for (size_t k = 0; k < next.size(); ++k) then[k] = next[k].row;
  const auto weigh = [&]<typename Row>(auto kernel, Row, auto* to) {
    kernel(reinterpret_cast<const Row* const*>(from.data()), weights.data(), rows.size(),
           reinterpret_cast<const Row* const*>(then.data()), next.size(), hidden, to);
  };
  if (sums == Element::kBf16) {
    weigh(Kernel().weigh_bf16, uint16_t{}, static_cast<uint16_t*>(out));
  } else if (outputs == Element::kBf16) {
    weigh(Kernel().weigh_bf16_to_f32, uint16_t{}, static_cast<float*>(out));
  } else {
    weigh(Kernel().weigh_f32, float{}, static_cast<float*>(out));
  }
  return true;
}

bool Sum(Element sums, std::span<const void* const> rows, uint32_t hidden, void* to) {
  if (sums == Element::kFixed)
    return Kernel().sum_fixed(reinterpret_cast<const int64_t* const*>(rows.data()), rows.size(),
                              hidden, static_cast<int64_t*>(to));
  if (sums == Element::kF32) {
    Kernel().sum_f32(reinterpret_cast<const float* const*>(rows.data()), rows.size(), hidden,
                     static_cast<float*>(to));
  } else {
    Kernel().sum_bf16(reinterpret_cast<const uint16_t* const*>(rows.data()), rows.size(), hidden,
                      static_cast<uint16_t*>(to));
  }
  return true;
}

void Stream(const void* from, size_t bytes, void* to) {
  auto* const target = static_cast<uint8_t*>(to);
  if (reinterpret_cast<uintptr_t>(to) % kLine == 0) {
    Kernel().stream(static_cast<const uint8_t*>(from), bytes, target);
  } else {
    std::memcpy(target, from, bytes);
  }
}

void EndStreams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace tangram::dispatch
