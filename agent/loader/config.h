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
  bool fp8 = false;   // weights are FP8, scaled by blocks of 128 x 128
  bool tied = false;  // the head is the embedding: lm_head.weight is not used
};

// Reads what transformers reads, by its defaults: the spellings of the hub and of transformers 5
// (num_experts / num_local_experts), null as if the field were missing. kInvalid names the file and
// the field. tests/golden/config.json: what other readers of the same file must find as well.
Result<Declared> DeclaredBy(const std::string& config_json, const std::string& file);

}  // namespace tangram::loader
