// The results of the Go twin (tests/golden/layouts.json, see its README) must be the results here.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/layout/prove.h"

namespace tangram::layout {
namespace {

using nlohmann::json;

std::string Unhex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

template <typename Message>
Message Parse(const json& hex) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(Unhex(hex.get<std::string>())));
  return message;
}

json Row(const PlacedPiece& p) {
  return json::array(
      {p.layer, p.bank, p.slot, p.expert, p.run.start, p.run.count, p.offset, p.bytes});
}

class Golden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(TANGRAM_GOLDEN_DIR "/layouts.json");
    golden_ = json::parse(in, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(golden_.is_object() && !golden_["cases"].empty());
  }
  json golden_;
};

TEST_F(Golden, Shards) {
  for (const json& row : golden_["shards"]) {
    const layout::Run want{row[4], row[5]};
    EXPECT_EQ(ShardOf(row[0], row[1], row[2], row[3]), want) << row.dump();
  }
}

TEST_F(Golden, PlacesPiecesLikeGo) {
  for (const json& c : golden_["cases"]) {
    const auto geometry = GeometryView::Make(Parse<v1::Geometry>(c["geometry"]));
    ASSERT_TRUE(geometry.ok()) << geometry.status().message();
    EXPECT_EQ(Hex(geometry->fingerprint()), c["fingerprint"].get<std::string>());
    EXPECT_EQ(geometry->expert_pitch(), c["expert_pitch"].get<uint64_t>());
    EXPECT_EQ(geometry->bank_pitch(), c["bank_pitch"].get<uint64_t>());
    for (const json& entry : c["layouts"]) {
      const auto layout = Parse<v1::Layout>(entry["wire"]);
      EXPECT_EQ(Hex(HashOf(layout)), entry["hash"].get<std::string>());
      EXPECT_TRUE(Validate(layout, *geometry).ok()) << Validate(layout, *geometry).message();
      for (uint32_t rank = 0; rank < entry["ranks"].size(); ++rank) {
        json rows = json::array();
        for (const PlacedPiece& piece : PiecesOf(layout, *geometry, rank))
          rows.push_back(Row(piece));
        const json& want = entry["ranks"][rank]["pieces"];
        EXPECT_EQ(rows, want.is_null() ? json::array() : want) << c["name"] << " rank " << rank;
      }
    }
  }
}

TEST_F(Golden, AppliesEveryFlipAndProvesEveryPart) {
  for (const json& c : golden_["cases"]) {
    const auto geometry = GeometryView::Make(Parse<v1::Geometry>(c["geometry"]));
    ASSERT_TRUE(geometry.ok());
    for (const json& flip : c["flips"]) {
      const int from = flip["from"];
      const v1::Layout base =
          from < 0 ? v1::Layout() : Parse<v1::Layout>(c["layouts"][from]["wire"]);
      const auto target = Parse<v1::Layout>(c["layouts"][flip["to"].get<int>()]["wire"]);
      if (from >= 0) {
        const auto applied = Apply(base, Parse<v1::LayoutDelta>(flip["delta"]), flip["epoch"]);
        ASSERT_TRUE(applied.ok()) << applied.status().message();
        EXPECT_EQ(Hex(HashOf(*applied)), Hex(HashOf(target))) << c["name"] << " to " << flip["to"];
      }
      for (const json& wire : flip["parts"]) {
        const auto part = Parse<v1::RankPart>(wire);
        const int32_t before = RankOf(base, part.member());
        const bool dense = before >= 0 && HoldsDense(base, static_cast<uint32_t>(before));
        const auto held = before < 0 ? std::vector<PlacedPiece>{}
                                     : PiecesOf(base, *geometry, static_cast<uint32_t>(before));
        const auto proof =
            ProvePart(*geometry, target, RankOf(target, part.member()), held, dense, part);
        EXPECT_TRUE(proof.ok()) << c["name"] << " to " << flip["to"] << ", " << part.member()
                                << ": " << proof.status().message();
        if (proof.ok()) {
          EXPECT_EQ(proof->peak_pages * geometry->page_bytes(), part.peak_bytes());
        }
      }
    }
  }
}

}  // namespace
}  // namespace tangram::layout
