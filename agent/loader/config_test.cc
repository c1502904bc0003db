// config.json as every reader must read it: tests/golden/config.json.
#include "agent/loader/config.h"

#include <gtest/gtest.h>

#include "agent/base/testing/config_cases.h"
#include "agent/loader/styles.h"

namespace tangram::loader {
namespace {

using nlohmann::json;

v1::DType DTypeOf(const std::string& name) {
  return name == "F32"   ? v1::DTYPE_F32
         : name == "FP8" ? v1::DTYPE_FP8_E4M3_BLOCK128
                         : v1::DTYPE_BF16;
}

TEST(GoldenConfig, MatchesFactsAndErrorsOfOtherReaders) {
  size_t taken = 0, refused = 0;
  for (const auto& c : tangram::testing::ReadConfigCases(TANGRAM_GOLDEN_DIR)) {
    SCOPED_TRACE(c.name);
    auto declared = DeclaredBy(c.config, "config.json");
    if (c.facts.is_null()) {
      ++refused;
      EXPECT_EQ(declared.ok() ? "taken" : declared.status().message(), "config.json: " + c.refused);
      continue;
    }
    ++taken;
    ASSERT_TRUE(declared.ok()) << declared.status().message();
    v1::Geometry g = declared->geometry;
    EXPECT_EQ(g.model(), c.model);
    const std::vector<uint32_t> moe(g.moe_layers().begin(), g.moe_layers().end());
    EXPECT_EQ(json({{"layers", g.layers()},
                    {"moe_layers", moe},
                    {"hidden", g.hidden()},
                    {"moe_inner", g.moe_inner()},
                    {"experts", g.experts()},
                    {"top_k", g.top_k()},
                    {"query_heads", g.query_heads()},
                    {"kv_heads", g.kv_heads()},
                    {"head_dim", g.head_dim()}}),
              json({{"layers", c.facts["layers"]},
                    {"moe_layers", c.facts["moe_layers"]},
                    {"hidden", c.facts["hidden"]},
                    {"moe_inner", c.facts["moe_inner"]},
                    {"experts", c.facts["experts"]},
                    {"top_k", c.facts["top_k"]},
                    {"query_heads", c.facts["query_heads"]},
                    {"kv_heads", c.facts["kv_heads"]},
                    {"head_dim", c.facts["head_dim"]}}));
    EXPECT_EQ(declared->fp8, c.facts["dtype"] == "FP8");
    // With tensors of that type, and scales in F32, a granule has the planned bytes.
    g.set_dtype(DTypeOf(c.facts["dtype"]));
    g.set_granule_rows(c.facts["granule_rows"]);
    const auto style = StyleOf(g.model(), declared->fp8);
    ASSERT_TRUE(style.ok()) << style.status().message();
    ASSERT_TRUE(SectionsOf(**style, v1::DTYPE_F32, &g).ok());
    EXPECT_EQ(g.granule_bytes(), c.facts["granule_bytes"]);
    EXPECT_EQ(g.expert_tail_bytes(), c.facts["tail_bytes"]);
  }
  EXPECT_GT(taken, 30U);
  EXPECT_GT(refused, 30U);
}

TEST(GoldenConfig, NamesFileWhenTextIsNotJsonObject) {
  for (const char* text : {"", "nothing", "[]", "{\"model_type\":", "{} {}"}) {
    EXPECT_EQ(DeclaredBy(text, "a/config.json").status().message(),
              "a/config.json: not a JSON object");
  }
}

}  // namespace
}  // namespace tangram::loader
