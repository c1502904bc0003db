#include "e2e/engine/model/router.h"

#include <algorithm>
#include <vector>

#include "e2e/engine/model/kernels.h"

namespace tangram::model {
namespace {

constexpr float kNever = -__builtin_inff();

void Softmax(std::span<float> row) {
  const float highest = *std::max_element(row.begin(), row.end());
  float sum = 0;
  for (float& v : row) sum += v = Exp(v - highest);
  for (float& v : row) v /= sum;
}

// Index of the largest element (the first, if equal), which is then excluded from later calls.
size_t TakeBest(std::span<float> row) {
  const auto best = std::max_element(row.begin(), row.end());
  *best = kNever;
  return static_cast<size_t>(best - row.begin());
}

// Excludes the experts outside the best groups.
void LimitGroups(const Router& router, std::span<float> choice) {
  const size_t size = choice.size() / router.groups;
  std::vector<float> good(router.groups, 0), members;
  for (size_t g = 0; g < router.groups; ++g) {
    members.assign(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    for (uint32_t i = 0; i < router.group_best; ++i) {
      good[g] += choice[g * size + TakeBest(members)];
    }
  }
  std::vector<bool> kept(router.groups, false);
  for (uint32_t i = 0; i < router.groups_kept; ++i) kept[TakeBest(good)] = true;
  for (size_t g = 0; g < router.groups; ++g) {
    if (!kept[g]) std::fill_n(choice.begin() + g * size, size, kNever);
  }
}

}  // namespace

void ChooseExperts(const Router& router, std::span<float> logits, std::span<const float> bias,
                   std::span<uint32_t> experts, std::span<float> weights) {
  if (router.sigmoid) {
    for (float& v : logits) v = 1.0f / (1.0f + Exp(-v));
  } else {
    Softmax(logits);
  }
  thread_local std::vector<float> choice;
  choice.assign(logits.begin(), logits.end());
  for (size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
  if (router.groups_kept < router.groups) LimitGroups(router, choice);
  float sum = 0;
  for (size_t j = 0; j < experts.size(); ++j) {
    const size_t best = TakeBest(choice);
    experts[j] = static_cast<uint32_t>(best);
    sum += weights[j] = logits[best];
  }
  for (float& weight : weights) {
    if (router.normalise) weight /= sum;
    weight *= router.scale;
  }
}

}  // namespace tangram::model
