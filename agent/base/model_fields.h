// What config.json says of routed experts under several names, or for several families alike: read
// by the loader and by the reference engine. operator/pkg/geometry is the twin in Go, and
// tests/golden/config.json holds what all three must find.
#pragma once

#include <cstdint>

#include "agent/base/fields.h"

namespace tangram {

// The number of routed experts: under `own`, the name that the family uses, or under another one.
uint32_t ReadExperts(Fields& fields, const char* own);
// Experts of a token: at most `experts`.
uint32_t ReadTopK(Fields& fields, uint32_t experts);
// head_dim, or hidden_size over the query heads.
uint32_t ReadHeadDim(Fields& fields, uint32_t hidden, uint32_t query_heads);

// Whether quantization_config says that weights are FP8, scaled by blocks of 128 x 128. Refuses any
// other quantisation, and names of a dtype that contradict each other.
bool ReadBlockFp8(Fields& fields);

}  // namespace tangram
