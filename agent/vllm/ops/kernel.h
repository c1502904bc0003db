// The operations of each instruction set for experts: three products of one strip of a piece with
// some tokens.
#ifndef AGENT_VLLM_OPS_KERNEL_H_
#define AGENT_VLLM_OPS_KERNEL_H_

#include <cstddef>
#include <cstdint>

namespace tangram::experts {

// The tokens of a strip. Kernels process four at a time, which share every load of a weight.
struct Tokens {
  const uint32_t* rows;  // of x and y
  const float* weights;
  uint32_t count;
};

// x in the kernel's type: [rows, hidden], F32 or BF16. Activations: [tokens, width], likewise.
struct Kernel {
  const char* name;
  size_t operand_bytes;  // of an element of x and of activations: 4 or 2

  // Converts `count` elements of x, rounded as activations for this type of weight are.
  void (*operand)(const float* from, size_t count, void* to);

  // Kernels prefetch memory that they read next. `next` is the start of the next call's memory (the
  // gate; its up is at the same distance as in this call), or null.

  // activations[t][j] = silu(gate[j] . x[t]) * (up[j] . x[t]) for `rows` rows j, `pitch` elements
  // apart.
  void (*gate_up)(const void* gate, const void* up, const void* next, size_t pitch, uint32_t rows,
                  uint32_t hidden, const void* x, const Tokens& tokens, void* activations,
                  size_t width);

  // y[t][h] += weight[t] * sum over j of activations[t][j] * down[j][h], for begin <= h < end.
  // `strips` runs of `rows` rows each, `stride` elements apart; within a run rows are `hidden`
  // apart. `scratch`: room for 4 * (end - begin) floats, rounded up to 32 each.
  void (*down_by_columns)(const void* down, const void* next, uint32_t strips, size_t stride,
                          uint32_t rows, uint32_t hidden, uint32_t begin, uint32_t end,
                          const void* activations, size_t width, const Tokens& tokens, float* y,
                          float* scratch);

  // The same for down as [hidden, rows], `pitch` elements from a row to the next.
  void (*down_by_rows)(const void* down, size_t pitch, uint32_t rows, uint32_t hidden,
                       uint32_t begin, uint32_t end, const void* activations, size_t width,
                       const Tokens& tokens, float* y);

  // out[t][j] = x[t] . weight[j] for `rows` rows j, contiguous; rows of out are out_pitch apart.
  void (*linear)(const void* weight, uint32_t rows, uint32_t length, const void* x, uint32_t tokens,
                 float* out, size_t out_pitch);
};

// By element of the weights. Null: not built for this processor architecture.
const Kernel* PlainF32();
const Kernel* PlainBf16();
const Kernel* Avx512F32();
const Kernel* Avx512Bf16();
const Kernel* Avx512DotBf16();  // with the instructions for BF16

}  // namespace tangram::experts

#endif  // AGENT_VLLM_OPS_KERNEL_H_
