// Experts as stored in slabs (docs/architecture.md, section 8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

// One token for one expert.
struct ExpertRow {
  const float* x = nullptr;  // [H], after MlpNorm
  float weight = 0;          // from the router
  int64_t* acc = nullptr;    // [H]; rows of one call must not share an accumulator
};

// A run of granules of one expert: granule-major, or a whole row-major slab. Both give the same
// result to the bit.
struct ExpertRun {
  const void* data = nullptr;  // first granule of the run
  uint32_t granules = 0;
  uint32_t granule_rows = 0;
  uint64_t granule_bytes = 0;
  DType dtype = DType::kBf16;
  bool row_major = false;
};

struct ExpertBytes {
  uint32_t dtype = 0;  // tangram.v1.DType
  uint32_t granule_rows = 0, hidden = 0;
  uint64_t granule_bytes = 0, tail_bytes = 0;
};
// kInvalid: Model::ExpertPartial cannot compute them. It needs three matrices of F32 or BF16, or of
// block FP8 with their scales, and nothing else (no biases).
Status CheckExperts(const ExpertBytes& experts);

// The matrices of one granule.
struct Granule {
  Matrix gate, up;  // [r, H]
  Matrix down;      // its columns as rows [r, H]
};

class GranuleReader {
 public:
  // Granule g of a run. Columns of `down` in a row-major slab are transposed into thread-local
  // memory, which the next call overwrites.
  Granule At(const ExpertRun& run, uint32_t g, uint32_t hidden);

 private:
  std::vector<std::byte> turned_, turned_scales_;
};

}  // namespace tangram::model
