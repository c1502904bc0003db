// Model::Bind: from names in the checkpoint to the matrices of the network.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <unordered_map>

#include "e2e/engine/model/kernels.h"
#include "e2e/engine/model/model.h"

namespace tangram::model {
namespace {

// Hands out tensors by name and remembers the first thing that is wrong.
class Binder {
 public:
  explicit Binder(std::span<const DenseTensor> tensors) {
    for (const DenseTensor& t : tensors) {
      if (!left_.emplace(t.name, &t).second) Fail(fmt::format("tensor {} comes twice", t.name));
    }
  }

  Matrix Take(const std::string& name, uint32_t rows, uint32_t cols) {
    const DenseTensor* t = Remove(name, {rows, cols});
    if (t == nullptr) return {};
    return {t->data, t->dtype, rows, cols, cols};
  }

  // Norm weights are few and read all the time: kept as fp32.
  std::vector<float> TakeVector(const std::string& name, uint32_t size) {
    std::vector<float> out(size);
    if (const DenseTensor* t = Remove(name, {size})) ToFloat(t->data, t->dtype, size, out.data());
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
      Fail(fmt::format("tensor {} is {}, config.json asks for {}", name, t->shape, shape));
      return nullptr;
    }
    if (t->dtype != DType::kF32 && t->dtype != DType::kBf16) {
      Fail(fmt::format("tensor {} has dtype {}: only F32 and BF16 are computed", name,
                       static_cast<uint32_t>(t->dtype)));
      return nullptr;
    }
    if (t->data == nullptr) {
      Fail(fmt::format("tensor {} has no data yet", name));
      return nullptr;
    }
    return t;
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Status(Code::kInvalid, "dense weights: " + message);
  }

  std::unordered_map<std::string, const DenseTensor*> left_;
  Status status_;
};

// cos and sin of position * theta^(-2i / head_dim). The frequency and the angle are rounded
// to fp32 as transformers has them, else late positions drift apart from it by the rounding
// of the angle; cos and sin are taken in double and rounded once.
std::vector<float> RopeTable(const Config& c) {
  const uint32_t half = c.head_dim / 2;
  std::vector<float> frequency(half);
  for (uint32_t i = 0; i < half; ++i) {
    frequency[i] = static_cast<float>(1.0 / std::pow(c.rope_theta, 2.0 * i / c.head_dim));
  }
  std::vector<float> table(size_t{2} * c.max_positions * half);
  float* out = table.data();
  for (uint32_t p = 0; p < c.max_positions; ++p) {
    for (uint32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequency[i];
      *out++ = static_cast<float>(std::cos(static_cast<double>(angle)));
      *out++ = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
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
    l.q = binder.Take(attention + "q_proj.weight", c.query_heads * c.head_dim, c.hidden);
    l.k = binder.Take(attention + "k_proj.weight", c.kv_heads * c.head_dim, c.hidden);
    l.v = binder.Take(attention + "v_proj.weight", c.kv_heads * c.head_dim, c.hidden);
    l.o = binder.Take(attention + "o_proj.weight", c.hidden, c.query_heads * c.head_dim);
    l.q_norm = binder.TakeVector(attention + "q_norm.weight", c.head_dim);
    l.k_norm = binder.TakeVector(attention + "k_norm.weight", c.head_dim);
    l.mlp_norm = binder.TakeVector(layer + "post_attention_layernorm.weight", c.hidden);
    if (c.moe_layer[i]) {
      l.router = binder.Take(layer + "mlp.gate.weight", c.experts, c.hidden);
    } else {
      l.gate = binder.Take(layer + "mlp.gate_proj.weight", c.dense_inner, c.hidden);
      l.up = binder.Take(layer + "mlp.up_proj.weight", c.dense_inner, c.hidden);
      l.down = binder.Take(layer + "mlp.down_proj.weight", c.hidden, c.dense_inner);
    }
  }
  m.final_norm_ = binder.TakeVector("model.norm.weight", c.hidden);
  m.lm_head_ = c.tied_embeddings ? m.embedding_ : binder.Take("lm_head.weight", c.vocab, c.hidden);
  TANGRAM_RETURN_IF_ERROR(binder.Finish());
  m.rope_ = RopeTable(c);
  m.config_ = std::move(config);
  return m;
}

}  // namespace tangram::model
