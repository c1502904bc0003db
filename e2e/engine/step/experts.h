// The expert stage of a layer: rows and router weights go to who has the granules of the chosen
// experts, int64 partials come back to the home (agent/engine/rows).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "agent/engine/rows/rows.h"
#include "e2e/engine/step/context.h"
#include "e2e/engine/world/reader.h"

namespace tangram::engine {

class ExpertStage {
 public:
  // `pieces` reads those of the epoch in force; both outlive this.
  ExpertStage(const tg_model& geometry, Reader* pieces)
      : geometry_(geometry),
        pieces_(pieces),
        exchange_({.hidden = geometry.hidden,
                   .top_k = geometry.top_k,
                   .experts = geometry.experts,
                   .x = dispatch::Element::kF32,
                   .wire = dispatch::Element::kF32,
                   .sums = dispatch::Element::kFixed}) {}

  // The layout from here on; none: out of every world.
  void Enter(std::shared_ptr<const dispatch::Routes> routes) { exchange_.Enter(std::move(routes)); }
  // x [rows of this home, H] += experts of layer `layer`.
  Status Run(StepContext& context, uint32_t layer, std::span<float> x);
  // Rows times granules that this rank computed since it was asked last, over all layers.
  uint32_t TakeExecuted() { return std::exchange(executed_, 0); }

 private:
  // Of what all homes asked for: [rows, H], in fixed point.
  Result<std::vector<int64_t>> Compute(StepContext& context, const dispatch::LayerRoutes& layer,
                                       const dispatch::Arrived& arrived);

  const tg_model& geometry_;
  Reader* const pieces_;
  ExpertRows exchange_;
  uint32_t executed_ = 0;
};

}  // namespace tangram::engine
