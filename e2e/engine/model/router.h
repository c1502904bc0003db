// Selection of a token's experts and their weights.
#pragma once

#include <cstdint>
#include <span>

namespace tangram::model {

struct Router {
  bool sigmoid = false;  // of each logit; otherwise softmax over all experts
  bool bias = false;     // added to a score for the choice, not for the weight
  // Experts are split, in order, into groups; only experts of the best groups are chosen. A group's
  // score is the sum of its `group_best` best experts.
  uint32_t groups = 1, groups_kept = 1, group_best = 1;
  bool normalise = false;  // make the weights of the chosen experts add up to 1 ...
  float scale = 1;         // ... before the multiplication by this
};

// Chooses top_k = experts.size() experts and their weights from the logits of one token [experts],
// which it overwrites. Best first, ties to the lowest expert. `bias` [experts], or empty.
void ChooseExperts(const Router& router, std::span<float> logits, std::span<const float> bias,
                   std::span<uint32_t> experts, std::span<float> weights);

}  // namespace tangram::model
