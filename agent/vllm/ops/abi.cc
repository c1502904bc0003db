// The C functions: check arguments, choose kernels, throw no exception.
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>

#include "agent/vllm/ops/experts.h"
#include "agent/vllm/ops/run.h"

namespace {

using tangram::experts::Call;
using tangram::experts::Kernel;

constexpr uint32_t kMostThreads = 256;

// Writes the error message; returns 1, the error code of the functions.
__attribute__((format(printf, 3, 4))) int Wrong(char* message, size_t size, const char* format,
                                                ...) {
  va_list arguments;
  va_start(arguments, format);
  if (message != nullptr && size > 0) std::vsnprintf(message, size, format, arguments);
  va_end(arguments);
  return 1;
}

bool HasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool HasAvx512Bf16() {
#if defined(__x86_64__)
  return HasAvx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

const Kernel* Choose(uint32_t kernel, uint32_t element) {
  if (kernel == TG_EXPERTS_DEFAULT)
    kernel = HasAvx512Bf16() ? TG_EXPERTS_AVX512_BF16
             : HasAvx512()   ? TG_EXPERTS_AVX512
                             : TG_EXPERTS_PLAIN;
  const bool f32 = element == TG_EXPERTS_F32;
  switch (kernel) {
    case TG_EXPERTS_AVX512_BF16:
      return f32 ? tangram::experts::Avx512F32() : tangram::experts::Avx512DotBf16();
    case TG_EXPERTS_AVX512:
      return f32 ? tangram::experts::Avx512F32() : tangram::experts::Avx512Bf16();
    default:
      return f32 ? tangram::experts::PlainF32() : tangram::experts::PlainBf16();
  }
}

int CheckPieces(const tg_experts_shape& shape, const tg_experts_piece* pieces, size_t count,
                char* message, size_t size) {
  const size_t element = shape.element == TG_EXPERTS_F32 ? 4 : 2;
  for (size_t i = 0; i < count; ++i) {
    const tg_experts_piece& piece = pieces[i];
    const bool row_major = shape.format == TG_EXPERTS_ROW_MAJOR;
    const uint64_t rows = uint64_t{piece.granules} * shape.granule_rows;
    if (piece.granules == 0 || rows > INT32_MAX)
      return Wrong(message, size, "piece %zu (expert %u): %u granules of %u rows", i, piece.expert,
                   piece.granules, shape.granule_rows);
    if (piece.expert > INT32_MAX)
      return Wrong(message, size, "piece %zu: no id can be expert %u", i, piece.expert);
    for (const void* address :
         {piece.gate, row_major ? piece.up : piece.gate, row_major ? piece.down : piece.gate})
      if (address == nullptr || reinterpret_cast<uintptr_t>(address) % element != 0)
        return Wrong(message, size,
                     "piece %zu (expert %u): %p is no address of its weights: is it on this rank?",
                     i, piece.expert, address);
    if (row_major && (piece.row_pitch < shape.hidden || piece.down_pitch < rows))
      return Wrong(
          message, size,
          "piece %zu (expert %u): pitches %u and %u are less than rows of %u and %llu elements", i,
          piece.expert, piece.row_pitch, piece.down_pitch, shape.hidden,
          static_cast<unsigned long long>(rows));
  }
  return 0;
}

}  // namespace

struct tg_experts {
  explicit tg_experts(uint32_t threads) : runner(threads) {}
  tangram::experts::Runner runner;
};

tg_experts* tg_experts_open(uint32_t threads) {
  if (threads < 1 || threads > kMostThreads) return nullptr;
  try {
    return new tg_experts(threads);
  } catch (const std::exception&) {  // no memory, or no more threads
    return nullptr;
  }
}

void tg_experts_close(tg_experts* experts) { delete experts; }

int tg_experts_has(uint32_t kernel) {
  switch (kernel) {
    case TG_EXPERTS_PLAIN:
      return 1;
    case TG_EXPERTS_AVX512:
      return HasAvx512();
    case TG_EXPERTS_AVX512_BF16:
      return HasAvx512Bf16();
    default:
      return 0;
  }
}

int tg_experts_linear(tg_experts* experts, uint32_t element, const void* weight, uint32_t n,
                      uint32_t k, uint32_t kernel, const void* x, uint32_t rows, void* y,
                      size_t y_pitch, char* message, size_t message_size) {
  if (experts == nullptr) return Wrong(message, message_size, "no handle is given");
  if (element != TG_EXPERTS_F32 && element != TG_EXPERTS_BF16)
    return Wrong(message, message_size,
                 "weights of element %u are not computed: F32 (1) and BF16 (2) are", element);
  if (kernel != TG_EXPERTS_DEFAULT && !tg_experts_has(kernel))
    return Wrong(message, message_size, "this processor has no kernel %u", kernel);
  if (rows == 0 || n == 0) return 0;
  if (weight == nullptr || x == nullptr || y == nullptr)
    return Wrong(message, message_size, "weight, x or y is not given");
  if (k == 0 || y_pitch < n)
    return Wrong(message, message_size, "k is %u, and rows of y are %zu apart, of %u elements", k,
                 y_pitch, n);
  try {
    experts->runner.Run(
        {element == TG_EXPERTS_F32, weight, n, k, Choose(kernel, element), x, rows, y, y_pitch});
    return 0;
  } catch (const std::bad_alloc&) {
    return Wrong(message, message_size, "no memory for %u rows of %u", rows, n);
  }
}

int tg_experts_run(tg_experts* experts, const tg_experts_shape* shape,
                   const tg_experts_piece* pieces, size_t count, uint32_t kernel, const float* x,
                   const int32_t* ids, const float* weights, uint32_t rows, uint32_t top_k,
                   float* y, char* message, size_t message_size) {
  if (experts == nullptr || shape == nullptr || (pieces == nullptr && count > 0))
    return Wrong(message, message_size, "no handle, shape or pieces are given");
  if (shape->hidden == 0 || shape->granule_rows == 0)
    return Wrong(message, message_size, "hidden %u and granule_rows %u must not be 0",
                 shape->hidden, shape->granule_rows);
  if (shape->element != TG_EXPERTS_F32 && shape->element != TG_EXPERTS_BF16)
    return Wrong(message, message_size,
                 "weights of element %u are not computed: F32 (1) and BF16 (2) are",
                 shape->element);
  if (shape->format != TG_EXPERTS_GRANULE_MAJOR && shape->format != TG_EXPERTS_ROW_MAJOR)
    return Wrong(message, message_size, "format %u is neither granule-major (1) nor row-major (2)",
                 shape->format);
  if (kernel != TG_EXPERTS_DEFAULT && !tg_experts_has(kernel))
    return Wrong(message, message_size, "this processor has no kernel %u", kernel);
  if (rows > 0 && top_k > 0 &&
      (x == nullptr || ids == nullptr || weights == nullptr || y == nullptr))
    return Wrong(message, message_size, "x, ids, weights or y is not given");
  if (const int wrong = CheckPieces(*shape, pieces, count, message, message_size)) return wrong;
  if (rows == 0 || top_k == 0 || count == 0) return 0;
  try {
    experts->runner.Run(
        {*shape, {pieces, count}, Choose(kernel, shape->element), x, ids, weights, rows, top_k, y});
    return 0;
  } catch (const std::bad_alloc&) {
    return Wrong(message, message_size, "no memory for %u rows of %u", rows, shape->hidden);
  }
}
