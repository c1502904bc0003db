// Loops over the numbers of rows, compiled for several instruction sets, with the same bits from
// each.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tangram::dispatch {

struct NumbersKernel {
  // to = the sum of rows, in their order; BF16 rounded once
  void (*sum_f32)(const float* const* rows, size_t rows_count, size_t count, float* to);
  void (*sum_bf16)(const uint16_t* const* rows, size_t rows_count, size_t count, uint16_t* to);
  // to = the sum of weights[k] * rows[k], in the order of k; BF16 rounded once. Prefetches the
  // beginnings of `next`.
  void (*weigh_f32)(const float* const* rows, const float* weights, size_t rows_count,
                    const float* const* next, size_t next_count, size_t count, float* to);
  void (*weigh_bf16)(const uint16_t* const* rows, const float* weights, size_t rows_count,
                     const uint16_t* const* next, size_t next_count, size_t count, uint16_t* to);
  void (*weigh_bf16_to_f32)(const uint16_t* const* rows, const float* weights, size_t rows_count,
                            const uint16_t* const* next, size_t next_count, size_t count,
                            float* to);
  void (*to_bf16)(const float* from, size_t count, uint16_t* to);
  void (*from_bf16)(const uint16_t* from, size_t count, float* to);
  // The largest magnitude; NaN is ignored.
  float (*largest)(const float* from, size_t count);
  void (*to_fp8)(const float* from, float scale, size_t count, uint8_t* to);
  // Converts each product to fixed point, and adds it. False: a product or a sum overflows.
  bool (*weigh_fixed)(const float* row, float weight, size_t count, int64_t* to);
  // As sum_f32. False: a sum overflows.
  bool (*sum_fixed)(const int64_t* const* rows, size_t rows_count, size_t count, int64_t* to);
  // A copy past the caches; `to` at a multiple of 64.
  void (*stream)(const uint8_t* from, size_t bytes, uint8_t* to);
};

extern const NumbersKernel kNumbersBase;  // for any processor
#if defined(__x86_64__)
extern const NumbersKernel kNumbersAvx2;
extern const NumbersKernel kNumbersAvx512;
#endif

}  // namespace tangram::dispatch
