// Which experts a token goes to, and with what weights.
#pragma once

#include <cstdint>
#include <span>

namespace tangram::model {

struct Router {
  bool sigmoid = false;  // of each logit; else softmax over all experts
  bool bias = false;     // is added to a score to choose by, not to weigh by
  // Experts in order are cut into groups; only those of the best groups are chosen from. A group is
  // as good as the sum of its `group_best` best experts.
  uint32_t groups = 1, groups_kept = 1, group_best = 1;
  bool normalise = false;  // weights of the chosen add up to 1 ...
  float scale = 1;         // ... before they are multiplied by this
};

// Of the logits of one token [experts], which are overwritten: top_k = experts.size() experts and
// their weights, best first, ties to the lowest expert. `bias` [experts], or empty without one.
void ChooseExperts(const Router& router, std::span<float> logits, std::span<const float> bias,
                   std::span<uint32_t> experts, std::span<float> weights);

}  // namespace tangram::model
