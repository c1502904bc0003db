// Kernels `kv_write`, `attend_scores` and `attend_mix`: attention of a decode step over pages.
#pragma once

#include "kernels/decode.h"

namespace tangram::kernels {

// Address of K of a position of a row and KV head; V follows `block_tokens * dim` numbers later.
template <typename Memory>
TANGRAM_DEVICE uint64_t KeyAt(const PagesOf& p, uint64_t row, uint64_t head, uint64_t position,
                              Memory& memory) {
  const uint64_t entry = (row * p.kv_heads + head) * p.blocks + position / p.block_tokens;
  const auto page = memory.template Read<uint64_t>(p.table + 8 * entry);
  return page + position % p.block_tokens * p.dim * 4;
}
template <typename Memory>
TANGRAM_DEVICE uint64_t PositionOf(const PagesOf& p, uint64_t row, Memory& memory) {
  return memory.template Read<uint32_t>(p.positions + 4 * row);
}

template <typename Memory>
TANGRAM_DEVICE void KvWrite(const Where& where, const KvWriteParameters& p, Memory& memory) {
  const PagesOf& pages = p.pages;
  EachItem(where, p.rows * pages.kv_heads * pages.dim, memory, [&](uint64_t i) {
    const uint64_t d = i % pages.dim, head = i / pages.dim % pages.kv_heads;
    const uint64_t row = i / pages.dim / pages.kv_heads;
    const uint64_t position = PositionOf(pages, row, memory);
    const uint64_t key = KeyAt(pages, row, head, position, memory) + 4 * d;
    StoreFloat(memory, key, LoadFloat(memory, p.k + 4 * i));
    StoreFloat(memory, key + pages.block_tokens * pages.dim * 4, LoadFloat(memory, p.v + 4 * i));
  });
}

template <typename Memory>
TANGRAM_DEVICE void AttendScores(const Where& where, const AttendParameters& p, Memory& memory) {
  const PagesOf& pages = p.pages;
  EachItem(where, p.rows * p.heads * p.most_positions, memory, [&](uint64_t i) {
    const uint64_t position = i % p.most_positions, head = i / p.most_positions;
    const uint64_t row = head / p.heads;
    if (position > PositionOf(pages, row, memory)) return;
    const uint64_t key = KeyAt(pages, row, head % p.heads / p.heads_per_kv, position, memory);
    float sum = 0;
    for (uint64_t d = 0; d < pages.dim; ++d) {
      const float q = LoadFloat(memory, p.q + (head * pages.dim + d) * 4);
      sum = Sum(sum, Product(q, LoadFloat(memory, key + 4 * d)));
    }
    StoreFloat(memory, p.scores + 4 * i, Product(sum, p.scale));
  });
}

// Softmax and the sum of V; each thread computes one number of a head.
template <typename Memory>
TANGRAM_DEVICE void AttendMix(const Where& where, const AttendParameters& p, Memory& memory) {
  const PagesOf& pages = p.pages;
  EachItem(where, p.rows * p.heads * pages.dim, memory, [&](uint64_t i) {
    const uint64_t d = i % pages.dim, head = i / pages.dim, row = head / p.heads;
    const uint64_t last = PositionOf(pages, row, memory);
    const uint64_t scores = p.scores + head * p.most_positions * 4;
    float highest = LoadFloat(memory, scores);
    for (uint64_t t = 1; t <= last; ++t) {
      const float score = LoadFloat(memory, scores + 4 * t);
      if (score > highest) highest = score;
    }
    const uint64_t value = pages.block_tokens * pages.dim * 4 + 4 * d;  // relative to its key
    float sum = 0, norm = 0;
    for (uint64_t t = 0; t <= last; ++t) {
      const float weight = Exp(Difference(LoadFloat(memory, scores + 4 * t), highest));
      const uint64_t key = KeyAt(pages, row, head % p.heads / p.heads_per_kv, t, memory);
      norm = Sum(norm, weight);
      sum = Sum(sum, Product(weight, LoadFloat(memory, key + value)));
    }
    StoreFloat(memory, p.to + row * p.to_pitch + (head % p.heads * pages.dim + d) * 4,
               Quotient(sum, norm));
  });
}

}  // namespace tangram::kernels
