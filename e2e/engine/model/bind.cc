// Model::Bind: from names in the checkpoint to the matrices of the network.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <unordered_map>

#include "e2e/engine/model/kernels.h"
#include "e2e/engine/model/model.h"

namespace tangram::model {
namespace {

// Returns tensors by name and remembers the first error.
class Binder {
 public:
  explicit Binder(std::span<const DenseTensor> tensors) {
    for (const DenseTensor& t : tensors) {
      if (!left_.emplace(t.name, &t).second) Fail(fmt::format("tensor {} is listed twice", t.name));
    }
  }

  // Includes the scales of its blocks, if it is FP8.
  Matrix Take(const std::string& name, uint32_t rows, uint32_t cols) {
    const DenseTensor* t = Remove(name, {rows, cols});
    if (t == nullptr) return {};
    Matrix out{t->data, t->dtype, rows, cols, cols};
    if (t->dtype != DType::kFp8) return out;
    const uint32_t blocks = ScaleBlocks(cols);
    if (const DenseTensor* scales = RemovePlain(name + "_scale_inv", {ScaleBlocks(rows), blocks})) {
      out.scales = {scales->data, scales->dtype, blocks};
    }
    return out;
  }

  // Norm weights are few and read all the time, so they are kept as fp32.
  std::vector<float> TakeVector(const std::string& name, uint32_t size) {
    std::vector<float> out(size);
    if (const DenseTensor* t = RemovePlain(name, {size}))
      ToFloat(t->data, t->dtype, size, out.data());
    return out;
  }

  Status Finish() {
    if (status_.ok() && !left_.empty()) {
      Fail(fmt::format("tensor {} is not part of the model ({} such)", left_.begin()->first,
                       left_.size()));
    }
    return status_;
  }

 private:
  const DenseTensor* Remove(const std::string& name, const std::vector<uint64_t>& shape) {
    auto it = left_.find(name);
    if (it == left_.end()) {
      Fail(fmt::format("tensor {} is missing", name));
      return nullptr;
    }
    const DenseTensor* t = it->second;
    left_.erase(it);
    if (t->shape != shape) {
      Fail(fmt::format("tensor {} is {}, config.json requires {}", name, t->shape, shape));
      return nullptr;
    }
    if (t->dtype < DType::kF32 || t->dtype > DType::kFp8) {
      Fail(fmt::format("tensor {} has dtype {}: only F32, BF16 and block FP8 are computed", name,
                       static_cast<uint32_t>(t->dtype)));
      return nullptr;
    }
    if (t->data == nullptr) {
      Fail(fmt::format("tensor {} has no data yet", name));
      return nullptr;
    }
    return t;
  }
  // Rejects FP8, because such tensors have no scales.
  const DenseTensor* RemovePlain(const std::string& name, const std::vector<uint64_t>& shape) {
    const DenseTensor* t = Remove(name, shape);
    if (t == nullptr || t->dtype != DType::kFp8) return t;
    Fail(fmt::format("tensor {} is FP8: only matrices may be FP8", name));
    return nullptr;
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Status(Code::kInvalid, "dense weights: " + message);
  }

  std::unordered_map<std::string, const DenseTensor*> left_;
  Status status_;
};

GroupedHeads TakeGrouped(Binder& binder, const std::string& name, const Config& c) {
  GroupedHeads out;
  out.q = binder.Take(name + "q_proj.weight", c.query_heads * c.head_dim, c.hidden);
  out.k = binder.Take(name + "k_proj.weight", c.kv_heads * c.head_dim, c.hidden);
  out.v = binder.Take(name + "v_proj.weight", c.kv_heads * c.head_dim, c.hidden);
  out.o = binder.Take(name + "o_proj.weight", c.hidden, c.query_heads * c.head_dim);
  out.q_norm = binder.TakeVector(name + "q_norm.weight", c.head_dim);
  out.k_norm = binder.TakeVector(name + "k_norm.weight", c.head_dim);
  return out;
}

LatentHeads TakeLatent(Binder& binder, const std::string& name, const Config& c) {
  const Latent& l = *c.latent;
  const uint32_t queries = c.query_heads * (l.nope + c.rope.width);
  LatentHeads out;
  if (l.q_rank == 0) {
    out.q = binder.Take(name + "q_proj.weight", queries, c.hidden);
  } else {
    out.q_a = binder.Take(name + "q_a_proj.weight", l.q_rank, c.hidden);
    out.q_a_norm = binder.TakeVector(name + "q_a_layernorm.weight", l.q_rank);
    out.q = binder.Take(name + "q_b_proj.weight", queries, l.q_rank);
  }
  out.kv_a = binder.Take(name + "kv_a_proj_with_mqa.weight", c.head_dim, c.hidden);
  out.kv_a_norm = binder.TakeVector(name + "kv_a_layernorm.weight", l.kv_rank);
  out.kv_b = binder.Take(name + "kv_b_proj.weight", c.query_heads * (l.nope + l.value), l.kv_rank);
  out.o = binder.Take(name + "o_proj.weight", c.hidden, c.query_heads * l.value);
  return out;
}

Mlp TakeMlp(Binder& binder, const std::string& name, uint32_t inner, uint32_t hidden) {
  if (inner == 0) return {};
  return {binder.Take(name + "gate_proj.weight", inner, hidden),
          binder.Take(name + "up_proj.weight", inner, hidden),
          binder.Take(name + "down_proj.weight", hidden, inner)};
}

}  // namespace

Result<Model> Model::Bind(Config config, std::span<const DenseTensor> tensors) {
  Binder binder(tensors);
  Model m;
  const Config& c = config;
  m.embedding_ = binder.Take("model.embed_tokens.weight", c.vocab, c.hidden);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::string attention = layer + "self_attn.";
    Layer& l = m.layers_.emplace_back();
    l.attention_norm = binder.TakeVector(layer + "input_layernorm.weight", c.hidden);
    if (c.latent) {
      l.heads = TakeLatent(binder, attention, c);
    } else {
      l.heads = TakeGrouped(binder, attention, c);
    }
    l.mlp_norm = binder.TakeVector(layer + "post_attention_layernorm.weight", c.hidden);
    if (!c.moe_layer[i]) {
      l.mlp = TakeMlp(binder, layer + "mlp.", c.dense_inner, c.hidden);
      continue;
    }
    l.router = binder.Take(layer + "mlp.gate.weight", c.experts, c.hidden);
    if (c.router.bias) {
      l.router_bias = binder.TakeVector(layer + "mlp.gate.e_score_correction_bias", c.experts);
    }
    l.mlp = TakeMlp(binder, layer + "mlp.shared_experts.", c.shared_inner, c.hidden);
  }
  m.final_norm_ = binder.TakeVector("model.norm.weight", c.hidden);
  m.lm_head_ = c.tied_embeddings ? m.embedding_ : binder.Take("lm_head.weight", c.vocab, c.hidden);
  TANGRAM_RETURN_IF_ERROR(binder.Finish());
  m.angles_ = RopeTable(c.rope, c.max_positions);
  m.config_ = std::move(config);
  return m;
}

}  // namespace tangram::model
