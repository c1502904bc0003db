#include <algorithm>

#include "e2e/engine/model/attention.h"
#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/kernels.h"

namespace tangram::model {
namespace {

// Epsilon of the norms of latents. It ignores config.json, like the published model and
// transformers.
constexpr float kLatentEps = 1e-6f;

}  // namespace

Status LatentHeads::Run(const AttentionCall& call) const {
  const Config& c = call.config;
  const Latent& l = *c.latent;
  const KvRegion& kv = call.kv;
  const uint32_t h = c.hidden, rope = c.rope.width, rank = l.kv_rank, width = l.nope + rope;
  const uint32_t heads = call.head_end - call.head_begin;
  const size_t m = call.rows.size();
  thread_local std::vector<float> low, queries, latents, query, taken, values, partial;

  // Latents of the rows: each rank that has a query head keeps all of them.
  latents.resize(m * (rank + rope));
  MatMul(kv_a, call.n.data(), h, m, latents.data(), rank + rope);
  for (size_t i = 0; i < m; ++i) {
    const AttentionRow& row = call.rows[i];
    if (!row.write_kv) continue;
    const float* latent = &latents[i * (rank + rope)];
    float* to = kv.K(row.pages[0][row.position / kv.block_tokens], row.position % kv.block_tokens);
    RmsNorm(latent, kv_a_norm.data(), kLatentEps, rank, to);
    Rotate(c.rope, call.AnglesOf(row.position), latent + rank, to + rank);
  }

  const Matrix mine = q.Rows(call.head_begin * width, heads * width);
  queries.resize(m * heads * width);
  if (l.q_rank == 0) {
    MatMul(mine, call.n.data(), h, m, queries.data(), heads * width);
  } else {
    low.resize(m * l.q_rank);
    MatMul(q_a, call.n.data(), h, m, low.data(), l.q_rank);
    for (size_t i = 0; i < m; ++i) {
      float* row = &low[i * l.q_rank];
      RmsNorm(row, q_a_norm.data(), kLatentEps, l.q_rank, row);
    }
    MatMul(mine, low.data(), l.q_rank, m, queries.data(), heads * width);
  }

  query.resize(m * (rank + rope));
  taken.resize(m * rank);
  values.resize(m * l.value);
  partial.resize(m * h);
  for (uint32_t i = 0; i < heads; ++i) {
    const uint32_t head = call.head_begin + i;
    const Matrix keys = kv_b.Rows(head * (l.nope + l.value), l.nope);
    const Matrix to_values = kv_b.Rows(head * (l.nope + l.value) + l.nope, l.value);
    const float* mine_of = &queries[i * width];
    TransposedMatMul(keys, mine_of, heads * width, m, query.data(), rank + rope);
    for (size_t r = 0; r < m; ++r) {
      const AttentionRow& row = call.rows[r];
      float* folded = &query[r * (rank + rope)];
      Rotate(c.rope, call.AnglesOf(row.position), mine_of + r * heads * width + l.nope,
             folded + rank);
      AttendHead(folded, c.score_scale, kv, row.pages[0], row.position, &taken[r * rank]);
    }
    MatMul(to_values, taken.data(), rank, m, values.data(), l.value);
    MatMul(o.Columns(head * l.value, l.value), values.data(), l.value, m, partial.data(), h);
    TANGRAM_RETURN_IF_ERROR(AccumulateFixed(partial, call.acc, "attention output"));
  }
  return OkStatus();
}

}  // namespace tangram::model
