#include "agent/vllm/ops/routes.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

namespace tangram::experts {
namespace {

using Routed = std::vector<std::tuple<uint32_t, float>>;  // rows and weights

TEST(Route, GivesEveryPieceItsRowsInOrder) {
  std::minstd_rand random(5);
  Routes routes;  // reused between calls
  for (int round = 0; round < 300; ++round) {
    const auto rows = static_cast<uint32_t>(random() % 9),
               top_k = static_cast<uint32_t>(1 + random() % 4);
    std::vector<tg_experts_piece> pieces(random() % 7);
    for (tg_experts_piece& piece : pieces)
      piece = {nullptr, nullptr, nullptr, 0, 0, static_cast<uint32_t>(random() % 6), 1};
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (uint32_t i = 0; i < rows * top_k; ++i) {
      ids.push_back(static_cast<int32_t>(random() % 9) - 1);
      weights.push_back(static_cast<float>(i));
    }
    Route(pieces, ids.data(), weights.data(), rows, top_k, &routes);
    for (size_t p = 0; p < pieces.size(); ++p) {
      Routed want, got;
      for (uint32_t i = 0; i < rows * top_k; ++i)
        if (ids[i] == static_cast<int32_t>(pieces[p].expert))
          want.emplace_back(i / top_k, weights[i]);
      const Tokens tokens = routes.Of(p);
      for (uint32_t t = 0; t < tokens.count; ++t)
        got.emplace_back(tokens.rows[t], tokens.weights[t]);
      ASSERT_EQ(got, want) << "round " << round << ", piece " << p;
    }
  }
}

}  // namespace
}  // namespace tangram::experts
