// The kernel for any processor: sixteen lanes as an array, added in the order of the other kernels.
#include <array>
#include <type_traits>

#include "agent/vllm/ops/bf16.h"
#include "agent/vllm/ops/kernel_loops.h"

namespace {

using tangram::experts::FromBf16;
using tangram::experts::ToBf16;

template <class W>
struct Plain {
  using Weight = W;
  using Operand = float;
  using Register = std::array<float, 16>;
  using Loaded = std::array<float, 16>;
  static constexpr uint32_t kStep = 16;

  static float Wide(float weight) { return weight; }
  static float Wide(uint16_t weight) { return FromBf16(weight); }
  static float Round(float value) {
    if constexpr (std::is_same_v<W, float>) return value;
    return FromBf16(ToBf16(value));
  }

  static Register Zero() { return {}; }
  static Loaded LoadWeight(const Weight* from, uint32_t n = kStep) {
    Loaded out{};
    for (uint32_t i = 0; i < n; ++i) out[i] = Wide(from[i]);
    return out;
  }
  static Loaded LoadOperand(const float* from, uint32_t n = kStep) {
    Loaded out{};
    for (uint32_t i = 0; i < n; ++i) out[i] = from[i];
    return out;
  }
  static Register Dot(Register sum, const Loaded& weight, const Loaded& operand) {
    for (uint32_t i = 0; i < kStep; ++i) sum[i] += weight[i] * operand[i];
    return sum;
  }
  static float Sum(Register lanes) {
    for (uint32_t half = 8; half > 0; half /= 2)
      for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }

  template <uint32_t T>
  static void AddRows(const Weight* down, size_t pitch, uint32_t rows, uint32_t columns, ptrdiff_t,
                      const float* const (&operands)[T], uint32_t j, float* sums,
                      size_t sums_pitch) {
    for (uint32_t t = 0; t < T; ++t)
      for (uint32_t r = 0; r < rows; ++r) {
        const float operand = operands[t][j + r];
        for (uint32_t h = 0; h < columns; ++h)
          sums[t * sums_pitch + h] += operand * Wide(down[r * pitch + h]);
      }
  }
  static void AddSums(const float* sums, uint32_t columns, float weight, float* y) {
    for (uint32_t h = 0; h < columns; ++h) y[h] += weight * sums[h];
  }
};

constexpr tangram::experts::Kernel kF32 = MakeKernel<Plain<float>>("plain");
constexpr tangram::experts::Kernel kBf16 = MakeKernel<Plain<uint16_t>>("plain");

}  // namespace

namespace tangram::experts {

const Kernel* PlainF32() { return &kF32; }
const Kernel* PlainBf16() { return &kBf16; }

}  // namespace tangram::experts
