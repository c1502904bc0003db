// The oracle: the reference model in one plain process, without ranks, agents or batching policy. A
// world of any layout must reproduce its results to the bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/checkpoint.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/model/sampler.h"

namespace tangram::model {

// How the oracle splits its work. No option may change a bit of the result (oracle_test.cc).
struct OracleOptions {
  uint32_t block_tokens = 16;
  uint32_t prefill_chunk = 0;            // prompt tokens per step; 0: the whole prompt
  std::vector<uint32_t> head_bounds;     // ranks of an attention group; empty: one
  std::vector<uint32_t> granule_bounds;  // shards of every expert; empty: one
  bool reverse = false;                  // sum shards from last to first
};

struct Generated {
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> hashes;            // LogitHash per generated token
  std::vector<std::vector<float>> logits;  // only if requested
};

struct OracleRequest {
  std::vector<uint32_t> prompt;  // not empty
  uint32_t max_tokens = 0;
  Sampling sampling;
  std::vector<uint32_t> stop_tokens;  // generation ends after one of these
};

class Oracle {
 public:
  static Result<Oracle> Create(const Checkpoint& checkpoint);

  const Model& model() const { return model_; }
  // Runs all requests as one batch: every step computes the next chunk or token of each of them.
  Result<std::vector<Generated>> Run(std::span<const OracleRequest> requests,
                                     const OracleOptions& options, bool keep_logits = false) const;

 private:
  struct Sequence;
  // Computes the rows of one step; fills x with the hidden states after the last layer.
  Status Forward(std::span<const uint32_t> tokens, std::span<Sequence* const> owners,
                 std::span<const uint32_t> positions, const OracleOptions& options,
                 const KvRegion& kv, std::vector<float>& x) const;
  Status Experts(uint32_t layer, std::span<const float> n, const OracleOptions& options,
                 std::vector<float>& x) const;

  const Checkpoint* checkpoint_ = nullptr;
  Model model_;
};

}  // namespace tangram::model
