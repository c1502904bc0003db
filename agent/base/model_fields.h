// Fields of config.json about routed experts that have several names, or are the same for several
// families. The loader and the reference engine read them. operator/pkg/geometry is the twin in Go;
// tests/golden/config.json has the expected results of all three.
#pragma once

#include <cstdint>

#include "agent/base/fields.h"

namespace tangram {

// The number of routed experts, under `own` (the family's name for it) or another name.
uint32_t ReadExperts(Fields& fields, const char* own);
// Experts of a token: at most `experts`.
uint32_t ReadTopK(Fields& fields, uint32_t experts);
// head_dim, or hidden_size over the query heads.
uint32_t ReadHeadDim(Fields& fields, uint32_t hidden, uint32_t query_heads);

// Whether quantization_config describes FP8 weights with scales per block of 128 x 128. Rejects any
// other quantization, and names of a dtype that contradict each other.
bool ReadBlockFp8(Fields& fields);

}  // namespace tangram
