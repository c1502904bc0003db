// Parameters of the grids of dispatch and combine: elements, and random layouts.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "agent/dispatch/slot.h"
#include "agent/dispatch/testing/layout.h"

namespace tangram::dispatch::testing {

constexpr uint32_t kGranules = 4;

struct Kind {
  const char* name;
  Element x, wire, sums;
  double bound;  // relative to the sum of magnitudes; 0: exact
};
constexpr Kind kKinds[] = {
    {"F32", Element::kF32, Element::kF32, Element::kF32, 0},
    {"Fixed", Element::kF32, Element::kF32, Element::kFixed, 0},
    {"Bf16", Element::kBf16, Element::kBf16, Element::kBf16, 3.0 / 256},
    {"Bf16ToF32", Element::kBf16, Element::kBf16, Element::kF32, 0},
    {"Fp8", Element::kBf16, Element::kFp8, Element::kBf16, 1.0 / 16 + 3.0 / 256},
    {"Fp8Fixed", Element::kF32, Element::kFp8, Element::kFixed, 1.0 / 16 + 1e-6},
};

inline Format FormatOf(const Kind& kind, uint32_t experts, uint32_t hidden, uint32_t top_k) {
  return {.hidden = hidden,
          .top_k = top_k,
          .experts = experts,
          .x = kind.x,
          .wire = kind.wire,
          .sums = kind.sums,
          .most_tokens = 64};
}

// Whole experts, slices over several ranks, and replicas of either, on random ranks.
inline Layout Drawn(uint32_t ranks, uint32_t experts, std::mt19937& draw) {
  Layout layout(ranks, experts);
  for (int l = 0; l < 2; ++l) {
    std::vector<Placed> of(experts);
    for (Placed& expert : of) {
      for (uint32_t a = 0; a <= draw() % 3; ++a) {
        auto& alternative = expert.emplace_back();
        for (uint32_t g = 0; g < kGranules;) {
          const uint32_t count = 1 + draw() % (kGranules - g);
          alternative.push_back({static_cast<uint32_t>(draw() % ranks), g, count});
          g += count;
        }
      }
    }
    layout.AddLayer(std::move(of));
  }
  return layout;
}

}  // namespace tangram::dispatch::testing
