// All readers of config.json must agree on it: tests/golden/config.json.
#include <gtest/gtest.h>

#include "agent/base/testing/config_cases.h"
#include "e2e/engine/model/config.h"

namespace tangram::model {
namespace {

TEST(GoldenConfig, MatchesFactsAndErrorsOfOtherReaders) {
  size_t taken = 0, refused = 0;
  for (const auto& c : tangram::testing::ReadConfigCases(TANGRAM_GOLDEN_DIR)) {
    SCOPED_TRACE(c.name);
    const auto config = ParseConfig(c.config);
    const bool computed =
        c.model == "qwen3_moe" || c.model == "deepseek_v2" || c.model == "deepseek_v3";
    if (!computed) {
      EXPECT_FALSE(config.ok());
      continue;
    }
    if (c.facts.is_null()) {
      ++refused;
      EXPECT_EQ(config.ok() ? "taken" : config.status().message(), "config.json: " + c.refused);
      continue;
    }
    ++taken;
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->layers, c.facts["layers"]);
    EXPECT_EQ(config->hidden, c.facts["hidden"]);
    EXPECT_EQ(config->moe_inner, c.facts["moe_inner"]);
    EXPECT_EQ(config->experts, c.facts["experts"]);
    EXPECT_EQ(config->top_k, c.facts["top_k"]);
    EXPECT_EQ(config->query_heads, c.facts["query_heads"]);
    EXPECT_EQ(config->kv_heads, c.facts["kv_heads"]);
    EXPECT_EQ(config->head_dim, c.facts["head_dim"]);
    std::vector<uint32_t> moe;
    for (uint32_t layer = 0; layer < config->layers; ++layer) {
      if (config->moe_layer[layer]) moe.push_back(layer);
    }
    EXPECT_EQ(moe, c.facts["moe_layers"].get<std::vector<uint32_t>>());
  }
  EXPECT_GT(taken, 20U);
  EXPECT_GT(refused, 20U);
}

}  // namespace
}  // namespace tangram::model
