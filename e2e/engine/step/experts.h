// The expert stage of a layer: rows and router weights go to the owners of every granule of
// the chosen experts, int64 partials come back to the home.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "e2e/engine/step/context.h"
#include "e2e/engine/step/expert_message.h"
#include "e2e/engine/world/reader.h"

namespace tangram::engine {

class ExpertStage {
 public:
  // `pieces` reads those of the epoch in force; both outlive this.
  ExpertStage(const tg_model& geometry, Reader* pieces) : geometry_(geometry), pieces_(pieces) {}

  // x [rows of this home, H] += experts of layer `layer`. Of several alternatives (redundant
  // experts) each home takes one in turn.
  Status Run(StepContext& context, uint32_t layer, std::span<float> x);
  // Rows times granules that this rank computed since it was asked last, over all layers.
  uint32_t TakeExecuted() { return std::exchange(executed_, 0); }

 private:
  struct Outgoing {
    std::vector<uint32_t> rows;        // of this home, ascending
    std::vector<ExpertEntry> entries;  // row = index into `rows`
  };

  void Dispatch(StepContext& context, const tg_layer_map& map, std::span<const float> n,
                std::vector<Outgoing>* outgoing);
  // Computes what all homes asked for; replies[r]: int64 [rows of r's message, H].
  Status Compute(StepContext& context, const tg_layer_map& map, const std::vector<Bytes>& asked,
                 std::vector<Bytes>* replies);

  const tg_model& geometry_;
  Reader* const pieces_;
  // [MoE layers * experts]: how often each was sent for. Layers have turns of their own: what one
  // asks for must not decide which copy the next one uses.
  std::vector<uint32_t> turns_;
  uint32_t executed_ = 0;
};

}  // namespace tangram::engine
