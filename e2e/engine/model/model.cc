#include "e2e/engine/model/model.h"

#include <fmt/core.h>

#include "e2e/engine/model/kernels.h"

namespace tangram::model {
namespace {

void NormRows(std::span<const float> x, const std::vector<float>& weight, float eps,
              std::span<float> out) {
  const size_t n = weight.size();
  for (size_t i = 0; i < x.size(); i += n) RmsNorm(&x[i], weight.data(), eps, n, &out[i]);
}

}  // namespace

Status Model::Embed(std::span<const uint32_t> tokens, std::span<float> x) const {
  const size_t h = config_.hidden;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= config_.vocab) {
      return Status(Code::kInvalid,
                    fmt::format("token {} at index {} is outside the vocabulary of {}", tokens[i],
                                i, config_.vocab));
    }
    ToFloat(embedding_.Rows(tokens[i], 1), &x[i * h]);
  }
  return OkStatus();
}

void Model::AttentionNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const {
  NormRows(x, layers_[layer].attention_norm, config_.rms_eps, out);
}

void Model::MlpNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const {
  NormRows(x, layers_[layer].mlp_norm, config_.rms_eps, out);
}

Status Model::AttentionPartial(uint32_t layer, uint32_t head_begin, uint32_t head_end,
                               std::span<const float> n, std::span<const AttentionRow> rows,
                               const KvRegion& kv, std::span<int64_t> acc) const {
  if (head_begin == head_end || rows.empty()) return OkStatus();
  const auto [kv_begin, kv_end] = config_.KvHeadsOf(head_begin, head_end);
  for (const AttentionRow& row : rows) {
    if (row.position >= config_.max_positions || row.pages.size() != kv_end - kv_begin) {
      return Status(
          Code::kInvalid,
          fmt::format("layer {}: row at position {} (limit {}) with pages of {} KV heads, "
                      "query heads [{}, {}) read {}",
                      layer, row.position, config_.max_positions, row.pages.size(), head_begin,
                      head_end, kv_end - kv_begin));
    }
  }
  const AttentionCall call{config_, angles_, head_begin, head_end, n, rows, kv, acc};
  return std::visit([&](const auto& heads) { return heads.Run(call); }, layers_[layer].heads);
}

void Model::Route(uint32_t layer, std::span<const float> n, std::span<uint32_t> experts,
                  std::span<float> weights) const {
  const Layer& l = layers_[layer];
  const size_t h = config_.hidden, e = config_.experts, k = config_.top_k;
  const size_t m = n.size() / h;
  thread_local std::vector<float> logits;
  logits.resize(m * e);
  MatMul(l.router, n.data(), h, m, logits.data(), e);
  for (size_t i = 0; i < m; ++i) {
    ChooseExperts(config_.router, std::span(logits).subspan(i * e, e), l.router_bias,
                  experts.subspan(i * k, k), weights.subspan(i * k, k));
  }
}

void Model::DenseMlp(uint32_t layer, std::span<const float> n, std::span<float> x) const {
  const Mlp& mlp = layers_[layer].mlp;
  const size_t h = config_.hidden, inner = mlp.gate.rows, m = n.size() / h;
  std::vector<float> gate(m * inner), up(m * inner), y(m * h);
  MatMul(mlp.gate, n.data(), h, m, gate.data(), inner);
  MatMul(mlp.up, n.data(), h, m, up.data(), inner);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = Silu(gate[i]) * up[i];
  MatMul(mlp.down, gate.data(), inner, m, y.data(), h);
  Axpy(1.0f, y.data(), x.data(), y.size());
}

void Model::Logits(std::span<const float> x, std::span<float> logits) const {
  const size_t h = config_.hidden;
  std::vector<float> n(x.size());
  NormRows(x, final_norm_, config_.rms_eps, n);
  MatMul(lm_head_, n.data(), h, x.size() / h, logits.data(), config_.vocab);
}

}  // namespace tangram::model
