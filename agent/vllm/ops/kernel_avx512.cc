// The kernel for AVX-512 (F, BW, VL): weights are F32, or BF16 that are widened when loaded. Built
// with these instructions: call Has() for them before any code here runs.
#include "agent/vllm/ops/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <type_traits>

#include "agent/vllm/ops/kernel_loops.h"

namespace {

inline __mmask16 First(uint32_t n) { return static_cast<__mmask16>((1U << n) - 1); }

// The rounding of bf16.h again: its inline functions are shared with sources built without AVX-512.
inline float RoundedBf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000)
    bits = (bits | 0x400000) & 0xffff0000;
  else
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <class W>
struct Avx512 {
  using Weight = W;
  using Operand = float;
  using Register = __m512;
  using Loaded = __m512;
  static constexpr uint32_t kStep = 16;

  static float Round(float value) {
    if constexpr (std::is_same_v<W, float>) return value;
    return RoundedBf16(value);
  }

  static __m512 Zero() { return _mm512_setzero_ps(); }
  static __m512 LoadOperand(const float* from) { return _mm512_loadu_ps(from); }
  static __m512 LoadOperand(const float* from, uint32_t n) {
    return _mm512_maskz_loadu_ps(First(n), from);
  }
  static __m512 LoadWeight(const float* from) { return _mm512_loadu_ps(from); }
  static __m512 LoadWeight(const float* from, uint32_t n) {
    return _mm512_maskz_loadu_ps(First(n), from);
  }
  static __m512 LoadWeight(const uint16_t* from) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m512 LoadWeight(const uint16_t* from, uint32_t n) {
    return Widen(_mm256_maskz_loadu_epi16(First(n), from));
  }
  static __m512 Dot(__m512 sum, __m512 weight, __m512 operand) {
    return _mm512_fmadd_ps(weight, operand, sum);
  }
  static float Sum(__m512 lanes) { return _mm512_reduce_add_ps(lanes); }

  template <uint32_t T>
  static void AddRows(const W* down, size_t pitch, uint32_t rows, uint32_t columns, ptrdiff_t ahead,
                      const float* const (&operands)[T], uint32_t j, float* sums,
                      size_t sums_pitch) {
    if (rows == kDownRows)
      return AddRowsOf<T, kDownRows>(down, pitch, columns, ahead, operands, j, sums, sums_pitch);
    for (uint32_t r = 0; r < rows; ++r)
      AddRowsOf<T, 1>(down + r * pitch, pitch, columns, 0, operands, j + r, sums, sums_pitch);
  }
  static void AddSums(const float* sums, uint32_t columns, float weight, float* y) {
    const __m512 factor = _mm512_set1_ps(weight);
    for (uint32_t h = 0; h < columns; h += 16) {
      const __mmask16 mask = columns - h < 16 ? First(columns - h) : 0xffff;
      const __m512 sum =
          _mm512_fmadd_ps(factor, _mm512_loadu_ps(sums + h), _mm512_maskz_loadu_ps(mask, y + h));
      _mm512_mask_storeu_ps(y + h, mask, sum);
    }
  }

 private:
  static __m512 Widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  template <uint32_t T, uint32_t R>
  static void AddRowsOf(const W* down, size_t pitch, uint32_t columns, ptrdiff_t ahead,
                        const float* const (&operands)[T], uint32_t j, float* sums,
                        size_t sums_pitch) {
    __m512 factors[T][R];
    for (uint32_t t = 0; t < T; ++t)
      for (uint32_t r = 0; r < R; ++r) factors[t][r] = _mm512_set1_ps(operands[t][j + r]);
    const auto step = [&](uint32_t h, auto load) {
      __m512 sum[T];
      for (uint32_t t = 0; t < T; ++t) sum[t] = _mm512_loadu_ps(sums + t * sums_pitch + h);
      for (uint32_t r = 0; r < R; ++r) {
        const __m512 weight = load(down + r * pitch + h);
        Ask(down + r * pitch + h, ahead);
        for (uint32_t t = 0; t < T; ++t) sum[t] = _mm512_fmadd_ps(factors[t][r], weight, sum[t]);
      }
      for (uint32_t t = 0; t < T; ++t) _mm512_storeu_ps(sums + t * sums_pitch + h, sum[t]);
    };
    uint32_t h = 0;
    for (; h + 16 <= columns; h += 16) step(h, [](const W* from) { return LoadWeight(from); });
    if (h < columns) step(h, [n = columns - h](const W* from) { return LoadWeight(from, n); });
  }
};

constexpr tangram::experts::Kernel kF32 = MakeKernel<Avx512<float>>("avx512");
constexpr tangram::experts::Kernel kBf16 = MakeKernel<Avx512<uint16_t>>("avx512");

}  // namespace

namespace tangram::experts {

const Kernel* Avx512F32() { return &kF32; }
const Kernel* Avx512Bf16() { return &kBf16; }

}  // namespace tangram::experts

#else

namespace tangram::experts {

const Kernel* Avx512F32() { return nullptr; }
const Kernel* Avx512Bf16() { return nullptr; }

}  // namespace tangram::experts

#endif
