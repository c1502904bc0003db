// config.json of a supported family (styles.h) -> geometry.
#pragma once

#include <string>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

// Everything but what only the tensors tell (dtype, granule, tail and dense bytes) and how slabs
// are to lie. Reads both the spellings of the hub and of transformers 5 (num_experts /
// num_local_experts). kInvalid names the field.
Result<v1::Geometry> GeometryOfConfig(const std::string& config_json, const std::string& file);

}  // namespace tangram::loader
