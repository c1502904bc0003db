// The shape of a model, read from the checkpoint's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/rope.h"
#include "e2e/engine/model/router.h"

namespace tangram::model {

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): of each token, the KV cache
// keeps one latent [kv_rank] and one rotated key [rope width], the same for all heads. A query head
// has `nope` elements for the latent, and the rotated ones.
struct Latent {
  uint32_t q_rank = 0;  // 0: one projection of queries
  uint32_t kv_rank = 0;
  uint32_t nope = 0;
  uint32_t value = 0;  // elements of a head's result
};

// Cached KV of one token of one KV head: K and V, or a latent, whose beginning is V.
struct KvRow {
  uint32_t key = 0, value = 0;
  bool latent = false;

  uint32_t floats() const { return latent ? key : key + value; }
  bool operator==(const KvRow&) const = default;
};

struct Config {
  uint32_t layers = 0;
  uint32_t vocab = 0;
  uint32_t hidden = 0;  // H
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;         // 1 with latents
  uint32_t head_dim = 0;         // of a KV head; or a latent with its rotated key
  std::optional<Latent> latent;  // nullopt: K and V by head
  float score_scale = 0;         // factor of query . key
  Rope rope;
  uint32_t experts = 0;  // routed experts per MoE layer
  uint32_t top_k = 0;
  Router router;
  uint32_t moe_inner = 0;      // I of a routed expert
  uint32_t shared_inner = 0;   // I of the shared experts of a MoE layer; 0: none
  uint32_t dense_inner = 0;    // I of the MLP of a layer without experts
  uint32_t max_positions = 0;  // length of the RoPE tables
  float rms_eps = 0;
  bool tied_embeddings = false;
  std::vector<bool> moe_layer;  // [layers]: true where the layer has routed experts

  uint32_t queries_per_kv() const { return query_heads / kv_heads; }
  uint32_t KvHeadOf(uint32_t query_head) const { return query_head / queries_per_kv(); }
  // KV heads that query heads [begin, end) read: [KvHeadOf(begin), KvHeadOf(end - 1) + 1).
  std::pair<uint32_t, uint32_t> KvHeadsOf(uint32_t begin, uint32_t end) const {
    if (begin == end) return {0, 0};
    return {KvHeadOf(begin), KvHeadOf(end - 1) + 1};
  }
  KvRow kv_row() const {
    return latent ? KvRow{head_dim, latent->kv_rank, true} : KvRow{head_dim, head_dim, false};
  }
};

// Reads transformers 5 files (num_local_experts, rope_parameters) and hub files (num_experts,
// rope_theta). kInvalid names the field: missing, of another architecture, or not computed by this
// engine (attention bias, sliding window, RoPE of another kind, an activation other than silu).
Result<Config> ParseConfig(std::string_view config_json);

}  // namespace tangram::model
