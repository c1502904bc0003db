// The reference model: Qwen3-MoE in fp32 with bits that do not depend on the layout.
//
// A step of one home, rows = tokens of any requests, H = hidden:
//
//   Embed                      -> x [m, H]
//   per layer:
//     AttentionNorm            -> n [m, H]
//     AttentionPartial         -> acc int64 [m, H]; on every rank of the attention group
//                                 for its query heads; AddFixed the answers, AddToResidual
//     MlpNorm                  -> n [m, H]
//     Route                    -> experts and weights [m, top_k]        (MoE layer)
//     ExpertPartial            -> acc int64 [m, H]; on the owners of each granule run;
//                                 AddFixed the answers, AddToResidual
//     DenseMlp                 -> added to x at home                    (layer without experts)
//   Logits                     -> [rows, vocab]; LogitHash, Sample (sampler.h)
//
// Every function computes each row by itself with one fixed sequence of fp32 operations,
// so the bits of a row are the same whatever the other rows, the split of heads and
// granules, and the number of positions handed over at once. Functions are const and
// keep no state between calls (scratch is per thread): one Model serves many threads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

// Positions of one attention chunk; chunks start at absolute multiples of it.
constexpr uint32_t kAttentionChunk = 64;

// How a rank's KV region is cut: page i starts at base + i * PageBytes().
struct KvRegion {
  void* base = nullptr;
  uint32_t block_tokens = 0;
  uint32_t head_dim = 0;

  size_t PageBytes() const { return size_t{2} * block_tokens * head_dim * sizeof(float); }
  float* K(uint32_t page, uint32_t slot) const {
    return static_cast<float*>(base) + page * (size_t{2} * block_tokens * head_dim) +
           size_t{slot} * head_dim;
  }
  float* V(uint32_t page, uint32_t slot) const {
    return K(page, slot) + size_t{block_tokens} * head_dim;
  }
};

// One token of a request in AttentionPartial.
struct AttentionRow {
  uint32_t position = 0;  // absolute
  // pages[i][b]: page of block b of the request, for KV head KvHeadsOf(heads).first + i in this
  // layer. Must reach block position / block_tokens.
  std::span<const uint32_t* const> pages;
  // False when the row's K and V lie in the pages already (a second range of query heads).
  bool write_kv = true;
};

// One token for one expert in ExpertPartial.
struct ExpertRow {
  const float* x = nullptr;  // [H], after MlpNorm
  float weight = 0;          // of the router
  int64_t* acc = nullptr;    // [H]; rows of one call must not share an accumulator
};

// A run of granules of one expert (architecture 8): granule-major, or a whole slab that is
// row-major. The result is the same to the bit.
struct ExpertRun {
  const void* data = nullptr;  // first granule of the run
  uint32_t granules = 0;
  uint32_t granule_rows = 0;
  DType dtype = DType::kBf16;
  bool row_major = false;
};

class Model {
 public:
  // The data must be there already (norm weights are copied). Finds every dense tensor by its
  // checkpoint name and checks dtype and shape against the config; kInvalid names the tensor.
  // Tensors it does not know are an error too.
  static Result<Model> Bind(Config config, std::span<const DenseTensor> tensors);

  const Config& config() const { return config_; }

  // x [tokens, H]. kInvalid for a token >= vocab.
  Status Embed(std::span<const uint32_t> tokens, std::span<float> x) const;

  // RMSNorm before attention and before the MLP; x, out [m, H].
  void AttentionNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const;
  void MlpNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const;

  // Attention of query heads [head_begin, head_end) for rows n [m, H] (after AttentionNorm):
  // writes K and V of all rows into the pages first, then attends, so that rows of one
  // request may come in one call (ascending or not), then adds each head's rows of o_proj
  // to acc [m, H]. Rows of one request must not skip a position that no earlier call wrote.
  Status AttentionPartial(uint32_t layer, uint32_t head_begin, uint32_t head_end,
                          std::span<const float> n, std::span<const AttentionRow> rows,
                          const KvRegion& kv, std::span<int64_t> acc) const;

  // Softmax router for rows n [m, H] (after MlpNorm): experts and weights [m, top_k], by falling
  // probability, ties to the lowest expert.
  void Route(uint32_t layer, std::span<const float> n, std::span<uint32_t> experts,
             std::span<float> weights) const;

  // Adds, for every row and granule of the run, SwiGLU through that granule times weight.
  Status ExpertPartial(const ExpertRun& run, std::span<const ExpertRow> rows) const;

  // SwiGLU of a layer without experts: x [m, H] += mlp(n [m, H]).
  void DenseMlp(uint32_t layer, std::span<const float> n, std::span<float> x) const;

  // Final norm and LM head: x [m, H] -> logits [m, vocab].
  void Logits(std::span<const float> x, std::span<float> logits) const;

 private:
  struct Layer {
    std::vector<float> attention_norm, mlp_norm;  // [H]
    std::vector<float> q_norm, k_norm;            // [head_dim]
    Matrix q, k, v;                               // [heads * head_dim, H]
    Matrix o;                                     // [H, query_heads * head_dim]
    Matrix router;                                // [experts, H]
    Matrix gate, up, down;                        // of a layer without experts
  };

  Config config_;
  std::vector<Layer> layers_;
  Matrix embedding_;               // [vocab, H]
  Matrix lm_head_;                 // [vocab, H]
  std::vector<float> final_norm_;  // [H]
  std::vector<float> rope_;        // [max_positions, head_dim / 2, {cos, sin}]
};

}  // namespace tangram::model
