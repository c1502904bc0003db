// Kernels of a decode step except attention and experts: `fill_bf16`, `embed`, `rms_norm`,
// `matvec`, `rope`, `add_parts`, `pick_token`.
#pragma once

#include "kernels/arithmetic.h"
#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

// Calls `each(i)` for the items of this thread; neighbouring threads have neighbouring items.
template <typename Memory, typename Each>
TANGRAM_DEVICE void EachItem(const Where& where, uint64_t items, Memory& memory, Each&& each) {
  const uint64_t step = uint64_t{where.blocks} * where.threads;
  for (uint64_t i = uint64_t{where.block} * where.threads + where.thread; i < items; i += step) {
    memory.Round();
    each(i);
  }
}

// A hash of a number and a seed (splitmix64: Steele, Lea and Flood, 2014).
TANGRAM_DEVICE uint64_t Mixed(uint64_t seed, uint64_t number) {
  uint64_t z = seed + (number + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

template <typename Memory>
TANGRAM_DEVICE void FillBf16(const Where& where, const FillParameters& p, Memory& memory) {
  EachItem(where, p.rows, memory, [&](uint64_t i) {
    const uint64_t bits = Mixed(p.seed, p.first + i);
    // 24 bits: exact in fp32. Bits beyond bf16 are cut off.
    const auto unit = static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23));
    const float value = Product(Product(unit, 1.1920929e-7f), p.scale);
    memory.template Store<uint16_t>(p.to + 2 * i, static_cast<uint16_t>(BitsOf(value) >> 16));
  });
}

template <typename Memory>
TANGRAM_DEVICE void Embed(const Where& where, const EmbedParameters& p, Memory& memory) {
  EachItem(where, p.rows * p.columns, memory, [&](uint64_t i) {
    const uint64_t token = memory.template Read<uint32_t>(p.tokens + i / p.columns * 4);
    const float value = LoadBf16(memory, p.table + 2 * (token * p.columns + i % p.columns));
    StoreFloat(memory, p.to + 4 * i, value);
  });
}

template <typename Memory>
TANGRAM_DEVICE void RmsNorm(const Where& where, const RmsNormParameters& p, Memory& memory) {
  EachItem(where, p.rows, memory, [&](uint64_t r) {
    const uint64_t row = r * p.columns * 4;
    float squares = 0;
    for (uint64_t i = 0; i < p.columns; ++i) {
      const float x = LoadFloat(memory, p.from + row + 4 * i);
      squares = Sum(squares, Product(x, x));
    }
    const float mean = Quotient(squares, static_cast<float>(p.columns));
    const float size = Root(Sum(mean, p.epsilon));
    for (uint64_t i = 0; i < p.columns; ++i) {
      const float x = LoadFloat(memory, p.from + row + 4 * i);
      StoreFloat(memory, p.to + row + 4 * i, Quotient(x, size));
    }
  });
}

// Neighbouring threads take neighbouring rows, which read the same weights.
template <typename Memory>
TANGRAM_DEVICE void Matvec(const Where& where, const MatvecParameters& p, Memory& memory) {
  EachItem(where, p.rows * p.outputs, memory, [&](uint64_t i) {
    const uint64_t r = i % p.rows, o = i / p.rows;
    const float sum =
        Dot(memory, p.weights + o * p.weights_pitch, p.from + r * p.from_pitch, p.columns);
    StoreFloat(memory, p.to + r * p.to_pitch + 4 * o, sum);
  });
}

template <typename Memory>
TANGRAM_DEVICE void Rope(const Where& where, const RopeParameters& p, Memory& memory) {
  const uint64_t half = p.dim / 2;
  EachItem(where, p.rows * p.heads * half, memory, [&](uint64_t i) {
    const uint64_t pair = i % half, head = i / half;
    const uint64_t position = memory.template Read<uint32_t>(p.positions + head / p.heads * 4);
    const uint64_t turn = p.table + (position * half + pair) * 8;
    const float c = LoadFloat(memory, turn), s = LoadFloat(memory, turn + 4);
    const uint64_t at = p.heads_of + (head * p.dim + pair) * 4;
    const float a = LoadFloat(memory, at), b = LoadFloat(memory, at + half * 4);
    StoreFloat(memory, at, Difference(Product(a, c), Product(b, s)));
    StoreFloat(memory, at + half * 4, Sum(Product(b, c), Product(a, s)));
  });
}

template <typename Memory>
TANGRAM_DEVICE void AddParts(const Where& where, const AddPartsParameters& p, Memory& memory) {
  EachItem(where, p.rows, memory, [&](uint64_t i) {
    float sum = LoadFloat(memory, p.x + 4 * i);
    for (uint64_t k = 0; k < p.count; ++k) {
      sum = Sum(sum, LoadFloat(memory, p.parts + k * p.pitch + 4 * i));
    }
    StoreFloat(memory, p.x + 4 * i, sum);
  });
}

template <typename Memory>
TANGRAM_DEVICE void PickToken(const Where& where, const PickParameters& p, Memory& memory) {
  EachItem(where, p.rows, memory, [&](uint64_t r) {
    const uint64_t next = memory.template Read<uint32_t>(p.positions + 4 * r) + uint64_t{1};
    const uint64_t history = p.history + r * p.history_pitch + 4 * next;
    uint32_t token = 0;
    if (next < memory.template Read<uint32_t>(p.known + 4 * r)) {
      token = memory.template Read<uint32_t>(history);
    } else {
      float best = LoadFloat(memory, p.logits + r * p.vocabulary * 4);
      for (uint32_t t = 1; t < p.vocabulary; ++t) {
        const float logit = LoadFloat(memory, p.logits + (r * p.vocabulary + t) * 4);
        if (logit > best) {
          best = logit;
          token = t;
        }
      }
      memory.template Store<uint32_t>(history, token);
      memory.template Store<uint32_t>(p.known + 4 * r, static_cast<uint32_t>(next + 1));
    }
    memory.template Store<uint32_t>(p.tokens + 4 * r, token);
    memory.template Store<uint32_t>(p.positions + 4 * r, static_cast<uint32_t>(next));
  });
}

}  // namespace tangram::kernels
