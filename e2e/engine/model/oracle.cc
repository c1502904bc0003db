#include "e2e/engine/model/oracle.h"

#include <algorithm>

namespace tangram::model {

struct Oracle::Sequence {
  const OracleRequest* request = nullptr;
  Generated out;
  uint32_t done = 0;  // positions whose KV is written
  // [layers][kv_heads][blocks]
  std::vector<std::vector<std::vector<uint32_t>>> pages;

  uint32_t length() const {
    return static_cast<uint32_t>(request->prompt.size() + out.tokens.size());
  }
  uint32_t TokenAt(uint32_t position) const {
    const size_t prompt = request->prompt.size();
    return position < prompt ? request->prompt[position] : out.tokens[position - prompt];
  }
  bool finished() const {
    if (out.tokens.size() >= request->max_tokens) return true;
    const auto& stop = request->stop_tokens;
    return !out.tokens.empty() &&
           std::find(stop.begin(), stop.end(), out.tokens.back()) != stop.end();
  }
};

namespace {

std::vector<uint32_t> BoundsOr(const std::vector<uint32_t>& bounds, uint32_t size) {
  return bounds.empty() ? std::vector<uint32_t>{0, size} : bounds;
}

// Index of the i-th of n shards in the requested order.
size_t Turn(size_t i, size_t n, bool reverse) { return reverse ? n - 1 - i : i; }

}  // namespace

Result<Oracle> Oracle::Create(const Checkpoint& checkpoint) {
  Result<Model> model = Model::Bind(checkpoint.config(), checkpoint.dense());
  if (!model.ok()) return model.status();
  Oracle oracle;
  oracle.checkpoint_ = &checkpoint;
  oracle.model_ = std::move(*model);
  return oracle;
}

Status Oracle::Experts(uint32_t layer, std::span<const float> n, const OracleOptions& options,
                       std::vector<float>& x) const {
  const Config& c = model_.config();
  const size_t h = c.hidden, m = n.size() / h, k = c.top_k;
  std::vector<uint32_t> experts(m * k);
  std::vector<float> weights(m * k);
  model_.Route(layer, n, experts, weights);
  const auto bounds = BoundsOr(options.granule_bounds, checkpoint_->granules());
  std::vector<int64_t> total(m * h, 0);
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    const size_t shard = Turn(s, bounds.size() - 1, options.reverse);
    std::vector<int64_t> acc(m * h, 0);  // the reply of one rank
    for (uint32_t i = 0; i < c.experts; ++i) {
      const auto e = static_cast<uint32_t>(Turn(i, c.experts, options.reverse));
      std::vector<ExpertRow> rows;
      for (size_t j = 0; j < m * k; ++j) {
        if (experts[j] == e) rows.push_back({&n[j / k * h], weights[j], &acc[j / k * h]});
      }
      if (rows.empty()) continue;
      const ExpertRun run =
          checkpoint_->Run(layer, e, bounds[shard], bounds[shard + 1] - bounds[shard]);
      TANGRAM_RETURN_IF_ERROR(model_.ExpertPartial(run, rows));
    }
    TANGRAM_RETURN_IF_ERROR(AddFixed(acc, total));
  }
  AddToResidual(total, x);
  return OkStatus();
}

Status Oracle::Forward(std::span<const uint32_t> tokens, std::span<Sequence* const> owners,
                       std::span<const uint32_t> positions, const OracleOptions& options,
                       const KvRegion& kv, std::vector<float>& x) const {
  const Config& c = model_.config();
  const size_t m = tokens.size(), h = c.hidden;
  x.resize(m * h);
  std::vector<float> n(m * h);
  TANGRAM_RETURN_IF_ERROR(model_.Embed(tokens, x));
  const auto bounds = BoundsOr(options.head_bounds, c.query_heads);
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    model_.AttentionNorm(layer, x, n);
    std::vector<int64_t> total(m * h, 0);
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const size_t shard = Turn(s, bounds.size() - 1, options.reverse);
      const auto [kv_begin, kv_end] = c.KvHeadsOf(bounds[shard], bounds[shard + 1]);
      std::vector<std::vector<const uint32_t*>> tables(m);
      std::vector<AttentionRow> rows(m);
      for (size_t i = 0; i < m; ++i) {
        for (uint32_t g = kv_begin; g < kv_end; ++g) {
          tables[i].push_back(owners[i]->pages[layer][g].data());
        }
        rows[i] = {positions[i], tables[i], true};
      }
      std::vector<int64_t> acc(m * h, 0);
      TANGRAM_RETURN_IF_ERROR(
          model_.AttentionPartial(layer, bounds[shard], bounds[shard + 1], n, rows, kv, acc));
      TANGRAM_RETURN_IF_ERROR(AddFixed(acc, total));
    }
    AddToResidual(total, x);
    model_.MlpNorm(layer, x, n);
    if (c.moe_layer[layer]) {
      TANGRAM_RETURN_IF_ERROR(Experts(layer, n, options, x));
    }
    if (model_.HasMlp(layer)) model_.DenseMlp(layer, n, x);
  }
  return OkStatus();
}

Result<std::vector<Generated>> Oracle::Run(std::span<const OracleRequest> requests,
                                           const OracleOptions& options, bool keep_logits) const {
  const Config& c = model_.config();
  std::vector<Sequence> sequences(requests.size());
  uint32_t pages = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].prompt.empty()) return Status(Code::kInvalid, "empty prompt");
    Sequence& s = sequences[i];
    s.request = &requests[i];
    const uint32_t most = s.length() + requests[i].max_tokens;
    const uint32_t blocks = (most + options.block_tokens - 1) / options.block_tokens;
    s.pages.assign(c.layers, std::vector(c.kv_heads, std::vector<uint32_t>(blocks)));
    for (auto& layer : s.pages) {
      for (auto& head : layer) {
        for (uint32_t& page : head) page = pages++;
      }
    }
  }
  KvRegion kv{nullptr, options.block_tokens, c.kv_row()};
  std::vector<std::byte> memory(pages * kv.PageBytes());
  kv.base = memory.data();

  std::vector<float> x, logits(c.vocab);
  while (true) {
    std::vector<uint32_t> tokens, positions;
    std::vector<Sequence*> owners;
    for (Sequence& s : sequences) {
      if (s.finished()) continue;
      uint32_t count = s.length() - s.done;
      if (options.prefill_chunk > 0) count = std::min(count, options.prefill_chunk);
      for (; count > 0; --count, ++s.done) {
        tokens.push_back(s.TokenAt(s.done));
        positions.push_back(s.done);
        owners.push_back(&s);
      }
    }
    if (tokens.empty()) break;
    TANGRAM_RETURN_IF_ERROR(Forward(tokens, owners, positions, options, kv, x));
    for (size_t i = 0; i < tokens.size(); ++i) {
      Sequence& s = *owners[i];
      if (positions[i] + 1 != s.length()) continue;  // not the newest token of its request
      model_.Logits(std::span(x).subspan(i * c.hidden, c.hidden), logits);
      s.out.hashes.push_back(LogitHash(logits));
      s.out.tokens.push_back(Sample(logits, s.request->sampling, s.length()));
      if (keep_logits) s.out.logits.push_back(logits);
    }
  }
  std::vector<Generated> out;
  for (Sequence& s : sequences) out.push_back(std::move(s.out));
  return out;
}

}  // namespace tangram::model
