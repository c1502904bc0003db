#include "e2e/engine/model/model.h"

#include <fmt/core.h>

#include <algorithm>

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
    ToFloat(embedding_.Rows(tokens[i], 1).data, embedding_.dtype, h, &x[i * h]);
  }
  return OkStatus();
}

void Model::AttentionNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const {
  NormRows(x, layers_[layer].attention_norm, config_.rms_eps, out);
}

void Model::MlpNorm(uint32_t layer, std::span<const float> x, std::span<float> out) const {
  NormRows(x, layers_[layer].mlp_norm, config_.rms_eps, out);
}

void Model::Route(uint32_t layer, std::span<const float> n, std::span<uint32_t> experts,
                  std::span<float> weights) const {
  const size_t h = config_.hidden, e = config_.experts, k = config_.top_k;
  const size_t m = n.size() / h;
  thread_local std::vector<float> p;
  p.resize(m * e);
  MatMul(layers_[layer].router, n.data(), h, m, p.data(), e);
  for (size_t i = 0; i < m; ++i) {
    const std::span<float> row(&p[i * e], e);
    const float highest = *std::max_element(row.begin(), row.end());
    float sum = 0;
    for (float& v : row) sum += v = Exp(v - highest);
    for (float& v : row) v /= sum;
    float chosen = 0;
    for (size_t j = 0; j < k; ++j) {
      auto best = std::max_element(row.begin(), row.end());  // the first of equals
      experts[i * k + j] = static_cast<uint32_t>(best - row.begin());
      weights[i * k + j] = *best;
      chosen += *best;
      *best = -1;
    }
    if (!config_.norm_topk_prob) continue;
    for (size_t j = 0; j < k; ++j) weights[i * k + j] /= chosen;
  }
}

namespace {

// Where the three matrices of a granule lie.
struct GranuleAt {
  const std::byte *gate = nullptr, *up = nullptr;  // rows [r, H]
  const std::byte* down = nullptr;                 // its columns as rows [r, H]
};

// Granule g of a run. Columns of `down` that are none yet are turned into `turned`.
GranuleAt Locate(const ExpertRun& run, uint32_t g, size_t hidden, std::vector<std::byte>* turned) {
  const size_t r = run.granule_rows, element = SizeOf(run.dtype), bytes = r * hidden * element;
  const auto* data = static_cast<const std::byte*>(run.data);
  if (!run.row_major) {
    const std::byte* const granule = data + 3 * g * bytes;
    return {granule, granule + bytes, granule + 2 * bytes};
  }
  const size_t pitch = run.granules * r * element;
  const std::byte* const down = data + 2 * run.granules * bytes + g * r * element;
  turned->resize(bytes);
  for (size_t h = 0; h < hidden; ++h) {
    for (size_t i = 0; i < r; ++i) {
      std::memcpy(&(*turned)[(i * hidden + h) * element], down + h * pitch + i * element, element);
    }
  }
  return {data + g * bytes, data + (run.granules + g) * bytes, turned->data()};
}

}  // namespace

Status Model::ExpertPartial(const ExpertRun& run, std::span<const ExpertRow> rows) const {
  const size_t h = config_.hidden, r = run.granule_rows, m = rows.size();
  thread_local std::vector<float> x, gate, up, y;
  x.resize(m * h);
  gate.resize(m * r);
  up.resize(m * r);
  y.resize(m * h);
  for (size_t i = 0; i < m; ++i) std::copy_n(rows[i].x, h, &x[i * h]);
  thread_local std::vector<std::byte> turned;
  for (uint32_t g = 0; g < run.granules; ++g) {
    const GranuleAt granule = Locate(run, g, h, &turned);
    const auto rows_of = static_cast<uint32_t>(r), cols = static_cast<uint32_t>(h);
    const Matrix gate_rows{granule.gate, run.dtype, rows_of, cols, h};
    const Matrix up_rows{granule.up, run.dtype, rows_of, cols, h};
    const Matrix down_columns{granule.down, run.dtype, rows_of, cols, h};
    MatMul(gate_rows, x.data(), h, m, gate.data(), r);
    MatMul(up_rows, x.data(), h, m, up.data(), r);
    for (size_t i = 0; i < m * r; ++i) gate[i] = Silu(gate[i]) * up[i];
    TransposedMatMul(down_columns, gate.data(), r, m, y.data(), h);
    for (size_t i = 0; i < m; ++i) {
      Scale(rows[i].weight, &y[i * h], h);
      TANGRAM_RETURN_IF_ERROR(AccumulateFixed({&y[i * h], h}, {rows[i].acc, h}, "expert output"));
    }
  }
  return OkStatus();
}

void Model::DenseMlp(uint32_t layer, std::span<const float> n, std::span<float> x) const {
  const Layer& l = layers_[layer];
  const size_t h = config_.hidden, inner = config_.dense_inner, m = n.size() / h;
  std::vector<float> gate(m * inner), up(m * inner), y(m * h);
  MatMul(l.gate, n.data(), h, m, gate.data(), inner);
  MatMul(l.up, n.data(), h, m, up.data(), inner);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = Silu(gate[i]) * up[i];
  MatMul(l.down, gate.data(), inner, m, y.data(), h);
  Axpy(1.0f, y.data(), x.data(), y.size());
}

void Model::Logits(std::span<const float> x, std::span<float> logits) const {
  const size_t h = config_.hidden;
  std::vector<float> n(x.size());
  NormRows(x, final_norm_, config_.rms_eps, n);
  MatMul(lm_head_, n.data(), h, x.size() / h, logits.data(), config_.vocab);
}

}  // namespace tangram::model
