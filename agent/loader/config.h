// config.json of a supported family (styles.h) -> geometry.
#pragma once

#include <string>

#include "agent/base/status.h"
#include "tangram/v1/layout.pb.h"

namespace tangram::loader {

struct Declared {
  // Everything except the values that only the tensors show (dtype; granule, tail and dense bytes)
  // and the slab format. MLA has one KV head: the latent with its rotated part.
  v1::Geometry geometry;
  bool fp8 = false;   // weights are FP8, scaled by blocks of 128 x 128
  bool tied = false;  // the head is the embedding: lm_head.weight is not used
};

// Reads the fields that transformers reads, with its defaults: in the spelling of the hub and of
// transformers 5 (num_experts / num_local_experts), null like a missing field. kInvalid names the
// file and the field. tests/golden/config.json has the values that other readers of the same file
// must find too.
Result<Declared> DeclaredBy(const std::string& config_json, const std::string& file);

}  // namespace tangram::loader
