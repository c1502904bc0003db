// The attention stage of a layer: rows are sent to the ranks that share the heads, and their int64
// partials return to the home.
#pragma once

#include <span>

#include "e2e/engine/step/context.h"

namespace tangram::engine {

// x [rows of this home, H] += attention of layer `layer`.
Status AttentionStage(StepContext& context, uint32_t layer, std::span<float> x);

}  // namespace tangram::engine
