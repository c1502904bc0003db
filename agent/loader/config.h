// config.json of a supported family (styles.h) -> geometry.
#pragma once

#include <string>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

struct Declared {
  // Everything but what only the tensors tell (dtype, granule, tail and dense bytes) and how slabs
  // are to lie. MLA has one KV head, a latent with its rotated part.
  v1::Geometry geometry;
  // Layers behind the last that guess further tokens (multi-token prediction): they are in the
  // files, and nobody serves them.
  uint32_t ahead = 0;
};

// Reads both the spellings of the hub and of transformers 5 (num_experts / num_local_experts).
// kInvalid names the field.
Result<Declared> DeclaredBy(const std::string& config_json, const std::string& file);

}  // namespace tangram::loader
