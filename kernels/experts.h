// Kernels `route`, `expert_up` and `expert_down`: the experts of a decode step.
#pragma once

#include "kernels/decode.h"

namespace tangram::kernels {

template <typename Memory>
TANGRAM_DEVICE void Route(const Where& where, const RouteParameters& p, Memory& memory) {
  EachItem(where, p.rows, memory, [&](uint64_t r) {
    const uint64_t logits = p.logits + r * p.experts * 4, to = p.to + r * p.top * sizeof(Choice);
    float first = 0, before = 0, norm = 0;
    uint64_t last = 0;  // the last chosen expert, with the logit `before`
    for (uint64_t k = 0; k < p.top; ++k) {
      float best = 0;
      uint64_t chosen = p.experts;
      for (uint64_t e = 0; e < p.experts; ++e) {
        const float logit = LoadFloat(memory, logits + 4 * e);
        const bool left = k == 0 || logit < before || (logit == before && e > last);
        if (left && (chosen == p.experts || logit > best)) {
          best = logit;
          chosen = e;
        }
      }
      if (k == 0) first = best;
      before = best;
      last = chosen;
      const float weight = Exp(Difference(best, first));
      norm = Sum(norm, weight);
      memory.template Store<uint32_t>(to + k * sizeof(Choice), static_cast<uint32_t>(chosen));
      StoreFloat(memory, to + k * sizeof(Choice) + 4, weight);
    }
    for (uint64_t k = 0; k < p.top; ++k) {
      const uint64_t at = to + k * sizeof(Choice) + 4;
      StoreFloat(memory, at, Quotient(LoadFloat(memory, at), norm));
    }
  });
}

// The address of the k-th expert of a row; 0: not here.
template <typename Memory>
TANGRAM_DEVICE uint64_t PlaceOf(const ExpertParameters& p, uint64_t row, uint64_t k,
                                Memory& memory) {
  const uint64_t choice = p.choices + (row * p.top + k) * sizeof(Choice);
  return memory.template Read<uint64_t>(p.places +
                                        8 * uint64_t{memory.template Read<uint32_t>(choice)});
}

template <typename Memory>
TANGRAM_DEVICE void ExpertUp(const Where& where, const ExpertParameters& p, Memory& memory) {
  EachItem(where, p.rows * p.top * p.inner, memory, [&](uint64_t i) {
    const uint64_t n = i % p.inner, row = i / p.inner / p.top;
    const uint64_t place = PlaceOf(p, row, i / p.inner % p.top, memory);
    if (place == 0) return;
    const uint64_t x = p.x + row * p.hidden * 4, line = p.hidden * 2;
    const float gate = Dot(memory, place + n * line, x, p.hidden);
    const float up = Dot(memory, place + (p.inner + n) * line, x, p.hidden);
    const float swish = Quotient(gate, Sum(1.0f, Exp(-gate)));
    StoreFloat(memory, p.acts + 4 * i, Product(swish, up));
  });
}

template <typename Memory>
TANGRAM_DEVICE void ExpertDown(const Where& where, const ExpertParameters& p, Memory& memory) {
  EachItem(where, p.rows * p.hidden, memory, [&](uint64_t i) {
    const uint64_t h = i % p.hidden, row = i / p.hidden;
    float sum = 0;
    for (uint64_t k = 0; k < p.top; ++k) {
      const uint64_t place = PlaceOf(p, row, k, memory);
      if (place == 0) continue;
      const uint64_t down = place + (2 * p.inner * p.hidden + h * p.inner) * 2;
      const uint64_t acts = p.acts + (row * p.top + k) * p.inner * 4;
      const float weight = LoadFloat(memory, p.choices + (row * p.top + k) * sizeof(Choice) + 4);
      sum = Sum(sum, Product(weight, Dot(memory, down, acts, p.inner)));
    }
    StoreFloat(memory, p.to + 4 * i, sum);
  });
}

}  // namespace tangram::kernels
