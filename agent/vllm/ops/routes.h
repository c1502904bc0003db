// The rows of each piece.
#ifndef AGENT_VLLM_OPS_ROUTES_H_
#define AGENT_VLLM_OPS_ROUTES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/vllm/ops/experts.h"
#include "agent/vllm/ops/kernel.h"

namespace tangram::experts {

// Memory is reused between calls.
struct Routes {
  // Tokens of pieces[i], in order of rows; a row twice if its ids name the expert twice.
  Tokens Of(size_t piece) const {
    return {rows.data() + begin[piece], weights.data() + begin[piece],
            begin[piece + 1] - begin[piece]};
  }

  std::vector<uint32_t> begin;  // by piece, and one more: where its tokens begin
  std::vector<uint32_t> rows;
  std::vector<float> weights;
  std::vector<uint32_t> first, next;  // pieces of an expert as a list: by expert, by piece
};

// ids, weights: [rows, top_k]. Ids without a piece are ignored. Linear in pieces and ids.
void Route(std::span<const tg_experts_piece> pieces, const int32_t* ids, const float* weights,
           uint32_t rows, uint32_t top_k, Routes* routes);

}  // namespace tangram::experts

#endif  // AGENT_VLLM_OPS_ROUTES_H_
