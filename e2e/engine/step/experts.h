// The expert stage of a layer: rows and router weights are sent to the owners of the chosen
// experts' granules, and int64 partials return to the home (agent/engine/rows).
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
  // `pieces` reads the pieces of the active epoch; both arguments must outlive this.
  ExpertStage(const tg_model& geometry, Reader* pieces)
      : geometry_(geometry),
        pieces_(pieces),
        exchange_({.hidden = geometry.hidden,
                   .top_k = geometry.top_k,
                   .experts = geometry.experts,
                   .x = dispatch::Element::kF32,
                   .wire = dispatch::Element::kF32,
                   .sums = dispatch::Element::kFixed}) {}

  // Sets the active layout; nullptr: outside of every world.
  void Enter(std::shared_ptr<const dispatch::Routes> routes) { exchange_.Enter(std::move(routes)); }
  // x [rows of this home, H] += experts of layer `layer`.
  Status Run(StepContext& context, uint32_t layer, std::span<float> x);
  // Rows times granules that this rank computed since the last call, over all layers.
  uint32_t TakeExecuted() { return std::exchange(executed_, 0); }

 private:
  // Results for the rows of all homes: [rows, H], in fixed point.
  Result<std::vector<int64_t>> Compute(StepContext& context, const dispatch::LayerRoutes& layer,
                                       const dispatch::Arrived& arrived);

  const tg_model& geometry_;
  Reader* const pieces_;
  ExpertRows exchange_;
  uint32_t executed_ = 0;
};

}  // namespace tangram::engine
