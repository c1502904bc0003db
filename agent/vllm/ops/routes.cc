#include "agent/vllm/ops/routes.h"

#include <algorithm>
#include <numeric>

namespace tangram::experts {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

void Route(std::span<const tg_experts_piece> pieces, const int32_t* ids, const float* weights,
           uint32_t rows, uint32_t top_k, Routes* routes) {
  uint32_t experts = 0;
  for (const tg_experts_piece& piece : pieces) experts = std::max(experts, piece.expert + 1);
  routes->first.assign(experts, kNone);
  routes->next.resize(pieces.size());
  for (size_t i = pieces.size(); i-- > 0;) {
    routes->next[i] = routes->first[pieces[i].expert];
    routes->first[pieces[i].expert] = static_cast<uint32_t>(i);
  }
  const size_t count = size_t{rows} * top_k;
  const auto each = [&](auto visit) {
    for (size_t i = 0; i < count; ++i)
      if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < experts)
        for (uint32_t piece = routes->first[ids[i]]; piece != kNone; piece = routes->next[piece])
          visit(piece, i);
  };
  routes->begin.assign(pieces.size() + 2,
                       0);  // shifted by two, so that filling leaves the begins in place
  each([&](uint32_t piece, size_t) { ++routes->begin[piece + 2]; });
  std::partial_sum(routes->begin.begin(), routes->begin.end(), routes->begin.begin());
  routes->rows.resize(routes->begin.back());
  routes->weights.resize(routes->begin.back());
  each([&](uint32_t piece, size_t i) {
    const uint32_t at = routes->begin[piece + 1]++;
    routes->rows[at] = static_cast<uint32_t>(i / top_k);
    routes->weights[at] = weights[i];
  });
}

}  // namespace tangram::experts
