// The shape of a Qwen3-MoE model, read from the checkpoint's config.json.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "agent/base/status.h"

namespace tangram::model {

struct Config {
  uint32_t layers = 0;
  uint32_t vocab = 0;
  uint32_t hidden = 0;  // H
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t experts = 0;  // routed experts per MoE layer
  uint32_t top_k = 0;
  uint32_t moe_inner = 0;      // I of a routed expert
  uint32_t dense_inner = 0;    // I of the MLP of a layer without experts
  uint32_t max_positions = 0;  // RoPE tables reach this far
  float rms_eps = 0;
  double rope_theta = 0;
  bool norm_topk_prob = false;
  bool tied_embeddings = false;
  std::vector<bool> moe_layer;  // [layers]: true where the layer has routed experts

  uint32_t queries_per_kv() const { return query_heads / kv_heads; }
  uint32_t KvHeadOf(uint32_t query_head) const { return query_head / queries_per_kv(); }
  // KV heads that query heads [begin, end) read: [KvHeadOf(begin), KvHeadOf(end - 1) + 1).
  std::pair<uint32_t, uint32_t> KvHeadsOf(uint32_t begin, uint32_t end) const {
    if (begin == end) return {0, 0};
    return {KvHeadOf(begin), KvHeadOf(end - 1) + 1};
  }
};

// Reads what transformers 5 writes (num_local_experts, rope_parameters) as well as hub
// files (num_experts, rope_theta). kInvalid names the field: missing, of another
// architecture, or something this engine does not compute (attention bias, sliding
// window, scaled RoPE, an activation other than silu).
Result<Config> ParseConfig(std::string_view config_json);

// Granules as they lie (docs/architecture.md, section 8).
struct ExpertBytes {
  uint32_t dtype = 0;  // tangram.v1.DType
  uint32_t granule_rows = 0, hidden = 0;
  uint64_t granule_bytes = 0, tail_bytes = 0;
};
// kInvalid: they are not what Model::ExpertPartial takes, three matrices of F32 or BF16 and nothing
// else (no scales, no biases).
Status CheckExperts(const ExpertBytes& experts);

}  // namespace tangram::model
