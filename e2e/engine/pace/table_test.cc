// The golden seconds of operator/pkg/kernels (written by compiled_test.go), and invalid tables.
#include "e2e/engine/pace/table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tangram::engine {
namespace {

using nlohmann::json;

const json& Golden() {
  static const json golden = [] {
    std::ifstream in(TANGRAM_GOLDEN_DIR "/pace.json");
    return json::parse(in, nullptr, /*allow_exceptions=*/false);
  }();
  return golden;
}

TEST(PaceTableTest, MatchesSecondsOfGoTwin) {
  ASSERT_TRUE(Golden().is_object());
  const Result<PaceTable> table = PaceTable::Parse(Golden()["table"].dump());
  ASSERT_TRUE(table.ok()) << table.status().message();
  size_t beyond = 0;
  for (const json& one : Golden()["cases"]) {
    const PaceShape shape{one["shape"][0], one["shape"][1], one["shape"][2]};
    const PaceStep* step = table->Find(shape);
    ASSERT_NE(step, nullptr) << ToString(shape);
    std::vector<PaceLoad> loads;
    for (const json& load : one["loads"]) {
      PaceLoad& to = loads.emplace_back();
      to.decode = load["decode"];
      to.context = load["context"];
      for (const json& chunk : load["chunks"]) {
        const uint64_t from = chunk[0], until = chunk[1];
        to.prefill += until - from;
        to.chunks += step->Chunk(from, until);
      }
      beyond += to.decode > 4;  // the golden table ends there
    }
    const double want = one["seconds"];
    EXPECT_NEAR(step->Seconds(loads, one["imbalance"]), want, 1e-12 * want) << one.dump();
  }
  EXPECT_GT(Golden()["cases"].size(), 100u);
  EXPECT_GT(beyond, 20u);
}

TEST(PaceTableTest, RejectsInvalidTableWithLocation) {
  const json good = Golden()["table"];
  const auto wrong = [&](auto change) {
    json table = good;
    change(table);
    const Result<PaceTable> parsed = PaceTable::Parse(table.dump());
    return parsed.ok() ? std::string("it was taken") : parsed.status().message();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(wrong([](json& t) { t["format"] = "tangram-pace-2"; }), "tangram-pace-2");
  has(wrong([](json& t) { t.erase("points_per_octave"); }), "null points in an octave");
  has(wrong([](json& t) { t["layers"] = 0; }), "layers");
  has(wrong([](json& t) { t["shapes"] = json::array(); }), "no shapes");
  has(wrong([](json& t) { t["shapes"].push_back(t["shapes"][0]); }), "twice");
  has(wrong([](json& t) { t["shapes"][1]["moe"].push_back(1); }), "moe has 194 points, want 193");
  has(wrong([](json& t) { t["shapes"][1]["around"][3] = -1; }), "-1 at point 3 is no time");
  has(wrong([](json& t) { t["shapes"][1]["expert_group"] = 7; }), "must divide");
  has(wrong([](json& t) { t["attention"][0]["dense"] = "fast"; }), "dense is no array");
  has(wrong([](json& t) { t["attention"][0]["generation"][1].push_back(1); }),
      "generation 1 has 42");
  has(wrong([](json& t) { t["attention"][0]["generation"][0][0] = 0; }), "is no time");
  has(wrong([](json& t) { t["attention"].erase(0); }), "no attention of as many ranks");
  has(wrong([](json& t) { t = json::array(); }), "no JSON object");
  has(PaceTable::Open("/nowhere").status().message(), "cannot read \"/nowhere\"");
}

TEST(PaceTableTest, FindsNearestShapeWithSameRankCount) {
  const Result<PaceTable> table = PaceTable::Parse(Golden()["table"].dump());
  ASSERT_TRUE(table.ok());
  PaceShape is;
  EXPECT_EQ(table->Find({3, 2, 1}), nullptr);
  ASSERT_NE(table->Nearest({3, 2, 1}, &is), nullptr);
  EXPECT_EQ(is, (PaceShape{3, 3, 1}));
  EXPECT_EQ(table->Nearest({5, 1, 1}, &is), nullptr);
}

}  // namespace
}  // namespace tangram::engine
