// The reference model: a network of attention and experts in fp32, with bits that do not depend on
// the layout. Families differ by config.json (config.h), not by separate code.
//
// A step of one home, rows = tokens of any requests, H = hidden:
//
//   Embed                      -> x [m, H]
//   per layer:
//     AttentionNorm            -> n [m, H]
//     AttentionPartial         -> acc int64 [m, H]; on every rank of the attention group
//                                 for its query heads; AddFixed the replies, AddToResidual
//     MlpNorm                  -> n [m, H]
//     Route                    -> experts and weights [m, top_k]        (MoE layer)
//     ExpertPartial            -> acc int64 [m, H]; on the owners of each granule run;
//                                 the kit adds them (agent/engine/rows),
//                                 AddToResidual
//     DenseMlp                 -> added to x at home     (layer without experts, shared experts)
//   Logits                     -> [rows, vocab]; LogitHash, Sample (sampler.h)
//
// Every function computes each row separately with one fixed sequence of fp32 operations. So the
// bits of a row do not depend on the other rows, the split of heads and granules, or the number of
// positions per call. Functions are const and keep no state between calls (scratch is per thread):
// one Model serves many threads.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/attention.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/model/experts.h"
#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

// SwiGLU applied to every token. No rows: the layer has none.
struct Mlp {
  Matrix gate, up;  // [inner, H]
  Matrix down;      // [H, inner]
};

class Model {
 public:
  // The data must be loaded already (norm weights are copied). Finds every dense tensor by its
  // checkpoint name and checks dtype and shape against the config; kInvalid names the tensor.
  // Unknown tensors are an error, too.
  static Result<Model> Bind(Config config, std::span<const DenseTensor> tensors);

  const Config& config() const { return config_; }

  // x [tokens, H]. kInvalid for a token >= vocab.
  Status Embed(std::span<const uint32_t> tokens, std::span<float> x) const;

  // RMSNorm before attention and before the MLP; x, out [m, H].
  void AttentionNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const;
  void MlpNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const;

  // Attention of query heads [head_begin, head_end) for rows n [m, H] (after AttentionNorm). First
  // writes the KV of all rows into the pages, then attends, so one call may have several rows of
  // one request (in any order). Then adds each head's rows of o_proj to acc [m, H]. Rows of one
  // request must not skip a position that no earlier call wrote.
  Status AttentionPartial(uint32_t layer, uint32_t head_begin, uint32_t head_end,
                          std::span<const float> n, std::span<const AttentionRow> rows,
                          const KvRegion& kv, std::span<int64_t> acc) const;

  // For rows n [m, H] (after MlpNorm): experts and weights [m, top_k], the best of each row first,
  // ties to the lowest expert.
  void Route(uint32_t layer, std::span<const float> n, std::span<uint32_t> experts,
             std::span<float> weights) const;

  // For every row and granule of the run, adds SwiGLU through that granule times weight.
  Status ExpertPartial(const ExpertRun& run, std::span<const ExpertRow> rows) const;

  // Whether the layer has an MLP for all tokens: of a layer without experts, or the shared experts.
  bool HasMlp(uint32_t layer) const { return layers_[layer].mlp.gate.rows > 0; }
  // x [m, H] += mlp(n [m, H]), where n is MlpNorm of x before the experts.
  void DenseMlp(uint32_t layer, std::span<const float> n, std::span<float> x) const;

  // Final norm and LM head: x [m, H] -> logits [m, vocab].
  void Logits(std::span<const float> x, std::span<float> logits) const;

 private:
  struct Layer {
    std::vector<float> attention_norm, mlp_norm;  // [H]
    std::variant<GroupedHeads, LatentHeads> heads;
    Matrix router;                   // [experts, H]
    std::vector<float> router_bias;  // [experts], or empty
    Mlp mlp;
  };

  Config config_;
  std::vector<Layer> layers_;
  Matrix embedding_;               // [vocab, H]
  Matrix lm_head_;                 // [vocab, H]
  std::vector<float> final_norm_;  // [H]
  std::vector<float> angles_;      // RopeTable
};

}  // namespace tangram::model
