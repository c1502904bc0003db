// The loops of a kernel, over a type that describes a register. Included by one source per
// instruction set, in an unnamed namespace: the linker must not merge code of different sets.
//
// `Set` has: Weight and Operand (types of elements), kStep (elements that a register of operands
// holds), Register, and static functions Zero, Dot (adds the products of n <= kStep weights and
// operands to the 16 lanes of a sum), Sum (of the lanes), and Round (a float as an operand).
#ifndef AGENT_VLLM_OPS_KERNEL_LOOPS_H_
#define AGENT_VLLM_OPS_KERNEL_LOOPS_H_

#include <type_traits>

#include "agent/vllm/ops/kernel.h"

namespace {

using tangram::experts::Tokens;

constexpr uint32_t kTokens = 4;    // tokens that share a load of weights
constexpr uint32_t kDownRows = 4;  // rows of down that share a load of sums

// Elements from a row to `next`, in any memory.
template <class Weight>
inline ptrdiff_t Distance(const Weight* from, const void* next) {
  return (reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(from)) /
         static_cast<ptrdiff_t>(sizeof(Weight));
}

// Prefetches the cache line `ahead` elements further, into the cache next to the core's own. Rows
// are streams of a page or two, too short for the processor to predict.
template <class Weight>
inline void Ask(const Weight* from, ptrdiff_t ahead) {
  __builtin_prefetch(from + ahead, 0, 2);
}

// Dot products of R rows of weights with T rows of operands, all K long. A sum adds its elements in
// the same order for any R and T, so rows are independent of their batch.
template <class Set, uint32_t R, uint32_t T>
inline void Products(const typename Set::Weight* const (&weights)[R],
                     const typename Set::Operand* const (&operands)[T], uint32_t length,
                     ptrdiff_t ahead, float (&out)[R][T]) {
  typename Set::Register sums[R][T];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t t = 0; t < T; ++t) sums[r][t] = Set::Zero();
  uint32_t k = 0;
  for (; k + Set::kStep <= length; k += Set::kStep) {
    typename Set::Loaded x[T];
    for (uint32_t t = 0; t < T; ++t) x[t] = Set::LoadOperand(operands[t] + k);
    for (uint32_t r = 0; r < R; ++r) {
      const typename Set::Loaded w = Set::LoadWeight(weights[r] + k);
      Ask(weights[r] + k, ahead);
      for (uint32_t t = 0; t < T; ++t) sums[r][t] = Set::Dot(sums[r][t], w, x[t]);
    }
  }
  if (k < length) {
    const uint32_t rest = length - k;
    for (uint32_t r = 0; r < R; ++r) {
      const typename Set::Loaded w = Set::LoadWeight(weights[r] + k, rest);
      for (uint32_t t = 0; t < T; ++t)
        sums[r][t] = Set::Dot(sums[r][t], w, Set::LoadOperand(operands[t] + k, rest));
    }
  }
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t t = 0; t < T; ++t) out[r][t] = Set::Sum(sums[r][t]);
}

inline float Silu(float x) { return x / (1.0F + __builtin_expf(-x)); }

// J rows of gate and of up, T tokens.
template <class Set, uint32_t J, uint32_t T>
inline void GateUpBlock(const typename Set::Weight* gate, const typename Set::Weight* up,
                        size_t pitch, uint32_t hidden, ptrdiff_t ahead,
                        const typename Set::Operand* const (&x)[T],
                        typename Set::Operand* const (&out)[T]) {
  const typename Set::Weight* rows[2 * J];
  for (uint32_t j = 0; j < J; ++j) {
    rows[2 * j] = gate + j * pitch;
    rows[2 * j + 1] = up + j * pitch;
  }
  float products[2 * J][T];
  Products<Set, 2 * J, T>(rows, x, hidden, ahead, products);
  for (uint32_t j = 0; j < J; ++j)
    for (uint32_t t = 0; t < T; ++t)
      out[t][j] = Set::Round(Silu(products[2 * j][t]) * products[2 * j + 1][t]);
}

// At most four rows with T tokens: at most 16 sums and 8 streams of memory.
template <class Set, uint32_t T>
inline void GateUpTokens(const typename Set::Weight* gate, const typename Set::Weight* up,
                         size_t pitch, uint32_t rows, uint32_t hidden, ptrdiff_t ahead,
                         const typename Set::Operand* x, const uint32_t* tokens,
                         typename Set::Operand* out, size_t width) {
  const typename Set::Operand* from[T];
  typename Set::Operand* to[T];
  for (uint32_t t = 0; t < T; ++t) {
    from[t] = x + size_t{tokens[t]} * hidden;
    to[t] = out + t * width;
  }
  const auto block = [&](auto count) {
    GateUpBlock<Set, count(), T>(gate, up, pitch, hidden, ahead, from, to);
    for (uint32_t t = 0; t < T; ++t) to[t] += count();
    gate += count() * pitch;
    up += count() * pitch;
    rows -= count();
  };
  if constexpr (T <= 2)
    if (rows >= 4) block(std::integral_constant<uint32_t, 4>());
  while (rows >= 2) block(std::integral_constant<uint32_t, 2>());
  if (rows > 0) block(std::integral_constant<uint32_t, 1>());
}

// Calls `take` with a constant for the number of tokens processed together.
template <class Take>
inline void InFours(uint32_t count, Take take) {
  uint32_t t = 0;
  for (; t + kTokens <= count; t += kTokens) take(t, std::integral_constant<uint32_t, 4>());
  switch (count - t) {
    case 3:
      return take(t, std::integral_constant<uint32_t, 3>());
    case 2:
      return take(t, std::integral_constant<uint32_t, 2>());
    case 1:
      return take(t, std::integral_constant<uint32_t, 1>());
    default:
      return;
  }
}

// A few rows stay in the core's cache while all tokens pass.
template <class Set>
void GateUp(const void* gate, const void* up, const void* next, size_t pitch, uint32_t rows,
            uint32_t hidden, const void* x, const Tokens& tokens, void* activations, size_t width) {
  using Weight = typename Set::Weight;
  using Operand = typename Set::Operand;
  const uint32_t together = tokens.count <= 2 ? 4 : 2;
  for (uint32_t j = 0; j < rows; j += together) {
    const auto* const first = static_cast<const Weight*>(gate) + j * pitch;
    ptrdiff_t ahead = 0;
    if (j + 2 * together <= rows) {
      ahead = static_cast<ptrdiff_t>(together * pitch);
    } else if (j + together == rows && next != nullptr) {
      ahead = Distance(first, next);
    }
    InFours(tokens.count, [&](uint32_t t, auto count) {
      GateUpTokens<Set, count()>(first, static_cast<const Weight*>(up) + j * pitch, pitch,
                                 rows - j < together ? rows - j : together, hidden, ahead,
                                 static_cast<const Operand*>(x), tokens.rows + t,
                                 static_cast<Operand*>(activations) + t * width + j, width);
    });
  }
}

// As GateUp: rows of down in short runs.
template <class Set>
void DownByRows(const void* down, size_t pitch, uint32_t rows, uint32_t hidden, uint32_t begin,
                uint32_t end, const void* activations, size_t width, const Tokens& tokens,
                float* y) {
  using Weight = typename Set::Weight;
  using Operand = typename Set::Operand;
  constexpr uint32_t kRun = 8;
  for (uint32_t run = begin; run < end; run += kRun) {
    const uint32_t run_end = end - run < kRun ? end : run + kRun;
    InFours(tokens.count, [&](uint32_t first, auto count) {
      constexpr uint32_t kTaken = count();
      const Operand* from[kTaken];
      for (uint32_t t = 0; t < kTaken; ++t)
        from[t] = static_cast<const Operand*>(activations) + (first + t) * width;
      const auto block = [&](uint32_t h, auto lines) {
        constexpr uint32_t kLines = lines();
        const Weight* row[kLines];
        for (uint32_t r = 0; r < kLines; ++r)
          row[r] = static_cast<const Weight*>(down) + (h + r) * pitch;
        float products[kLines][kTaken];
        Products<Set, kLines, kTaken>(
            row, from, rows, h + 2 * kLines <= run_end ? static_cast<ptrdiff_t>(kLines * pitch) : 0,
            products);
        for (uint32_t t = 0; t < kTaken; ++t)
          for (uint32_t r = 0; r < kLines; ++r)
            y[size_t{tokens.rows[first + t]} * hidden + h + r] +=
                tokens.weights[first + t] * products[r][t];
      };
      constexpr uint32_t kLines = kTaken == 1 ? 8 : 4;
      uint32_t h = run;
      for (; h + kLines <= run_end; h += kLines)
        block(h, std::integral_constant<uint32_t, kLines>());
      for (; h < run_end; ++h) block(h, std::integral_constant<uint32_t, 1>());
    });
  }
}

// Sums of T tokens are in scratch while rows of down stream by, each read once and from start to
// end. Memory is fastest that way, and a granule's rows are too many for registers.
template <class Set>
void DownColumns(const void* down, const void* next, uint32_t strips, size_t stride, uint32_t rows,
                 uint32_t hidden, uint32_t begin, uint32_t end, const void* activations,
                 size_t width, const Tokens& tokens, float* y, float* scratch) {
  using Weight = typename Set::Weight;
  using Operand = typename Set::Operand;
  const size_t pitch = (end - begin + 31) / 32 * 32;
  InFours(tokens.count, [&](uint32_t first, auto count) {
    constexpr uint32_t kTaken = count();
    for (size_t i = 0; i < kTaken * pitch; ++i) scratch[i] = 0;
    const Operand* from[kTaken];
    for (uint32_t t = 0; t < kTaken; ++t)
      from[t] = static_cast<const Operand*>(activations) + (first + t) * width;
    for (uint32_t strip = 0; strip < strips; ++strip) {
      const Weight* row = static_cast<const Weight*>(down) + strip * stride + begin;
      const void* const after = strip + 1 < strips ? row + stride : next;
      for (uint32_t j = 0; j < rows; j += kDownRows) {
        const Weight* const block = row + size_t{j} * hidden;
        ptrdiff_t ahead = 0;
        if (j + 2 * kDownRows <= rows) {
          ahead = static_cast<ptrdiff_t>(size_t{kDownRows} * hidden);
        } else if (j + kDownRows == rows && after != nullptr) {
          ahead = Distance(block, after);
        }
        Set::template AddRows<kTaken>(block, hidden, rows - j < kDownRows ? rows - j : kDownRows,
                                      end - begin, ahead, from, strip * rows + j, scratch, pitch);
      }
    }
    for (uint32_t t = 0; t < kTaken; ++t)
      Set::AddSums(scratch + t * pitch, end - begin, tokens.weights[first + t],
                   y + size_t{tokens.rows[first + t]} * hidden + begin);
  });
}

// Few tokens are bound by memory. Many are bound by the core: sums and weights of some columns stay
// in its cache.
template <class Set>
void DownByColumns(const void* down, const void* next, uint32_t strips, size_t stride,
                   uint32_t rows, uint32_t hidden, uint32_t begin, uint32_t end,
                   const void* activations, size_t width, const Tokens& tokens, float* y,
                   float* scratch) {
  using Weight = typename Set::Weight;
  const uint32_t columns = tokens.count < kTokens ? end - begin : 512;
  for (uint32_t first = begin; first < end; first += columns)
    DownColumns<Set>(down, next == nullptr ? nullptr : static_cast<const Weight*>(next) + first,
                     strips, stride, rows, hidden, first,
                     end - first < columns ? end : first + columns, activations, width, tokens, y,
                     scratch);
}

// As GateUp: a few rows stay in the cache while all tokens pass.
template <class Set>
void Linear(const void* weight, uint32_t rows, uint32_t length, const void* x, uint32_t tokens,
            float* out, size_t out_pitch) {
  using Weight = typename Set::Weight;
  using Operand = typename Set::Operand;
  const uint32_t together = tokens <= 2 ? 8 : 4;
  for (uint32_t j = 0; j < rows; j += together) {
    const Weight* const first = static_cast<const Weight*>(weight) + size_t{j} * length;
    const uint32_t taken = rows - j < together ? rows - j : together;
    const ptrdiff_t ahead =
        j + 2 * together <= rows ? static_cast<ptrdiff_t>(size_t{together} * length) : 0;
    InFours(tokens, [&](uint32_t t, auto count) {
      constexpr uint32_t kTaken = count();
      const Operand* from[kTaken];
      for (uint32_t i = 0; i < kTaken; ++i)
        from[i] = static_cast<const Operand*>(x) + size_t{t + i} * length;
      const auto block = [&](uint32_t begin, auto lines) {
        constexpr uint32_t kLines = lines();
        const Weight* row[kLines];
        for (uint32_t r = 0; r < kLines; ++r) row[r] = first + size_t{begin + r} * length;
        float products[kLines][kTaken];
        Products<Set, kLines, kTaken>(row, from, length, ahead, products);
        for (uint32_t i = 0; i < kTaken; ++i)
          for (uint32_t r = 0; r < kLines; ++r)
            out[(t + i) * out_pitch + j + begin + r] = products[r][i];
      };
      uint32_t r = 0;
      if constexpr (kTaken <= 2)
        for (; r + 8 <= taken; r += 8) block(r, std::integral_constant<uint32_t, 8>());
      for (; r + 4 <= taken; r += 4) block(r, std::integral_constant<uint32_t, 4>());
      for (; r < taken; ++r) block(r, std::integral_constant<uint32_t, 1>());
    });
  }
}

template <class Set>
void Operands(const float* from, size_t count, void* to) {
  for (size_t i = 0; i < count; ++i)
    static_cast<typename Set::Operand*>(to)[i] = Set::Round(from[i]);
}

template <class Set>
constexpr tangram::experts::Kernel MakeKernel(const char* name) {
  return {name,
          sizeof(typename Set::Operand),
          Operands<Set>,
          GateUp<Set>,
          DownByColumns<Set>,
          DownByRows<Set>,
          Linear<Set>};
}

}  // namespace

#endif  // AGENT_VLLM_OPS_KERNEL_LOOPS_H_
