#include <cstring>

#include "e2e/engine/model/attention.h"
#include "e2e/engine/model/fixed.h"
#include "e2e/engine/model/kernels.h"

namespace tangram::model {

Status GroupedHeads::Run(const AttentionCall& call) const {
  const Config& c = call.config;
  const KvRegion& kv = call.kv;
  const uint32_t h = c.hidden, dim = c.head_dim;
  const auto [kv_begin, kv_end] = c.KvHeadsOf(call.head_begin, call.head_end);
  const uint32_t heads = call.head_end - call.head_begin, kv_heads = kv_end - kv_begin;
  const size_t m = call.rows.size();
  thread_local std::vector<float> queries, keys, values, mixed, partial;
  queries.resize(m * heads * dim);
  keys.resize(m * kv_heads * dim);
  values.resize(m * kv_heads * dim);
  mixed.resize(m * heads * dim);
  partial.resize(m * h);
  const float* n = call.n.data();
  MatMul(q.Rows(call.head_begin * dim, heads * dim), n, h, m, queries.data(), heads * dim);
  MatMul(k.Rows(kv_begin * dim, kv_heads * dim), n, h, m, keys.data(), kv_heads * dim);
  MatMul(v.Rows(kv_begin * dim, kv_heads * dim), n, h, m, values.data(), kv_heads * dim);

  for (size_t i = 0; i < m; ++i) {
    const AttentionRow& row = call.rows[i];
    if (!row.write_kv) continue;
    const uint32_t block = row.position / kv.block_tokens, slot = row.position % kv.block_tokens;
    for (uint32_t g = 0; g < kv_heads; ++g) {
      float* key = &keys[(i * kv_heads + g) * dim];
      RmsNorm(key, k_norm.data(), c.rms_eps, dim, key);
      const uint32_t page = row.pages[g][block];
      Rotate(c.rope, call.AnglesOf(row.position), key, kv.K(page, slot));
      std::memcpy(kv.V(page, slot), &values[(i * kv_heads + g) * dim], dim * sizeof(float));
    }
  }
  for (size_t i = 0; i < m; ++i) {
    const AttentionRow& row = call.rows[i];
    for (uint32_t head = 0; head < heads; ++head) {
      float* query = &queries[(i * heads + head) * dim];
      RmsNorm(query, q_norm.data(), c.rms_eps, dim, query);
      Rotate(c.rope, call.AnglesOf(row.position), query, query);  // pairs are halves: in place
      const uint32_t g = c.KvHeadOf(call.head_begin + head) - kv_begin;
      AttendHead(query, c.score_scale, kv, row.pages[g], row.position,
                 &mixed[(i * heads + head) * dim]);
    }
  }
  for (uint32_t head = 0; head < heads; ++head) {
    MatMul(o.Columns((call.head_begin + head) * dim, dim), &mixed[head * dim], heads * dim, m,
           partial.data(), h);
    TANGRAM_RETURN_IF_ERROR(AccumulateFixed(partial, call.acc, "attention output"));
  }
  return OkStatus();
}

}  // namespace tangram::model
