// The kernel for AVX-512 with instructions for BF16: pairs of weights times pairs of operands,
// added in F32. Built with these instructions: call Has() for them before any code here runs.
#include "agent/vllm/ops/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <type_traits>

#include "agent/vllm/ops/kernel_loops.h"

namespace {

inline __mmask32 First(uint32_t n) { return n >= 32 ? 0xffffffffU : (1U << n) - 1; }
inline __m512bh AsPairs(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

struct Avx512Dot {
  using Weight = uint16_t;
  using Operand = uint16_t;
  using Register = __m512;
  using Loaded = __m512i;
  static constexpr uint32_t kStep = 32;

  // The rounding of bf16.h again: its inline functions are shared with sources built without
  // AVX-512.
  static uint16_t Round(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }

  static __m512 Zero() { return _mm512_setzero_ps(); }
  static __m512i LoadOperand(const uint16_t* from) { return _mm512_loadu_si512(from); }
  static __m512i LoadOperand(const uint16_t* from, uint32_t n) {
    return _mm512_maskz_loadu_epi16(First(n), from);
  }
  static __m512i LoadWeight(const uint16_t* from) { return _mm512_loadu_si512(from); }
  static __m512i LoadWeight(const uint16_t* from, uint32_t n) {
    return _mm512_maskz_loadu_epi16(First(n), from);
  }
  static __m512 Dot(__m512 sum, __m512i weight, __m512i operand) {
    return _mm512_dpbf16_ps(sum, AsPairs(weight), AsPairs(operand));
  }
  static float Sum(__m512 lanes) { return _mm512_reduce_add_ps(lanes); }

  // Two rows of down at a time: unpacking interleaves them into pairs, in an order within 32
  // columns that AddSums undoes. An odd last row is paired with zeros.
  template <uint32_t T>
  static void AddRows(const uint16_t* down, size_t pitch, uint32_t rows, uint32_t columns,
                      ptrdiff_t ahead, const uint16_t* const (&operands)[T], uint32_t j,
                      float* sums, size_t sums_pitch) {
    __m512i factors[2][T];
    for (uint32_t pair = 0; pair < 2; ++pair)
      for (uint32_t t = 0; t < T; ++t) {
        const uint32_t low = 2 * pair < rows ? operands[t][j + 2 * pair] : 0;
        const uint32_t high = 2 * pair + 1 < rows ? operands[t][j + 2 * pair + 1] : 0;
        factors[pair][t] = _mm512_set1_epi32(static_cast<int>(low | high << 16));
      }
    for (uint32_t h = 0; h < columns; h += 32) {
      const __mmask32 mask = First(columns - h);
      __m512 low[T], high[T];
      for (uint32_t t = 0; t < T; ++t) {
        low[t] = _mm512_loadu_ps(sums + t * sums_pitch + h);
        high[t] = _mm512_loadu_ps(sums + t * sums_pitch + h + 16);
      }
      for (uint32_t pair = 0; 2 * pair < rows; ++pair) {
        const uint16_t* row = down + 2 * pair * pitch + h;
        Ask(row, ahead);
        Ask(row + pitch, ahead);
        const __m512i first = _mm512_maskz_loadu_epi16(mask, row);
        const __m512i second = 2 * pair + 1 < rows ? _mm512_maskz_loadu_epi16(mask, row + pitch)
                                                   : _mm512_setzero_si512();
        const __m512i lower = _mm512_unpacklo_epi16(first, second),
                      upper = _mm512_unpackhi_epi16(first, second);
        for (uint32_t t = 0; t < T; ++t) {
          low[t] = Dot(low[t], lower, factors[pair][t]);
          high[t] = Dot(high[t], upper, factors[pair][t]);
        }
      }
      for (uint32_t t = 0; t < T; ++t) {
        _mm512_storeu_ps(sums + t * sums_pitch + h, low[t]);
        _mm512_storeu_ps(sums + t * sums_pitch + h + 16, high[t]);
      }
    }
  }

  static void AddSums(const float* sums, uint32_t columns, float weight, float* y) {
    // The first four of eight columns are in `low`, the others in `high`.
    const __m512i begin = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i end = _mm512_add_epi32(begin, _mm512_set1_epi32(8));
    const __m512 factor = _mm512_set1_ps(weight);
    for (uint32_t h = 0; h < columns; h += 32) {
      const __m512 low = _mm512_loadu_ps(sums + h), high = _mm512_loadu_ps(sums + h + 16);
      const __mmask32 mask = First(columns - h);
      Add(y + h, static_cast<__mmask16>(mask), factor, _mm512_permutex2var_ps(low, begin, high));
      Add(y + h + 16, static_cast<__mmask16>(mask >> 16), factor,
          _mm512_permutex2var_ps(low, end, high));
    }
  }

 private:
  static void Add(float* y, __mmask16 mask, __m512 factor, __m512 sum) {
    _mm512_mask_storeu_ps(y, mask, _mm512_fmadd_ps(factor, sum, _mm512_maskz_loadu_ps(mask, y)));
  }
};

constexpr tangram::experts::Kernel kKernel = MakeKernel<Avx512Dot>("avx512bf16");

}  // namespace

namespace tangram::experts {

const Kernel* Avx512DotBf16() { return &kKernel; }

}  // namespace tangram::experts

#else

namespace tangram::experts {

const Kernel* Avx512DotBf16() { return nullptr; }

}  // namespace tangram::experts

#endif
