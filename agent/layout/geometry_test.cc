// Geometry bounds: each field at its limits and just outside.
#include "agent/layout/geometry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

using ::testing::HasSubstr;

struct Bound {
  std::string field;
  std::function<void(v1::Geometry*, uint64_t)> set;
  std::vector<uint64_t> taken, refused;
};

template <typename T>
std::function<void(v1::Geometry*, uint64_t)> To(void (v1::Geometry::*set)(T)) {
  return [set](v1::Geometry* g, uint64_t value) { (g->*set)(static_cast<T>(value)); };
}

TEST(GeometryBounds, AcceptsFieldsAtLimitsAndRejectsBeyondByName) {
  constexpr uint64_t kPage = uint64_t{1} << 40, kDense = uint64_t{1} << 61;
  const auto inner = [](v1::Geometry* g, uint64_t value) {
    g->set_moe_inner(static_cast<uint32_t>(value));
    g->set_granule_rows(g->moe_inner());
  };
  const auto layers = [](v1::Geometry* g, uint64_t value) {
    g->set_layers(static_cast<uint32_t>(value));
    if (value == 0) g->clear_moe_layers();
  };
  using G = v1::Geometry;
  const std::vector<Bound> bounds = {
      {"layers = ", layers, {2, 4096}, {0, 4097}},
      {"hidden = ", To(&G::set_hidden), {1, 1 << 20}, {0, (1 << 20) + 1}},
      {"moe_inner = ", inner, {1, 1 << 20}, {0, (1 << 20) + 1}},
      {"experts = ", To(&G::set_experts), {1, 65536}, {0, 65537}},
      {"granule_rows = ", To(&G::set_granule_rows), {1, 8, 48}, {0, 7, 96}},
      {"granule_bytes = ", To(&G::set_granule_bytes), {1, kPage}, {0, kPage + 1}},
      {"expert_tail_bytes = ", To(&G::set_expert_tail_bytes), {0, kPage}, {kPage + 1}},
      {" query heads ", To(&G::set_query_heads), {4, 12}, {0, 13}},
      {" KV heads", To(&G::set_kv_heads), {1, 12}, {0, 5}},
      {"page_bytes = ", To(&G::set_page_bytes), {256, kPage}, {0, 128, 257, 4095, 2 * kPage}},
      {"dense_bytes = ", To(&G::set_dense_bytes), {0, kDense}, {kDense + 1}},
  };
  for (const Bound& bound : bounds) {
    const auto make = [&](uint64_t value) {
      v1::Geometry g = testing::SmallGeometry(2, 4, 6);
      bound.set(&g, value);
      return GeometryView::Make(g);
    };
    for (const uint64_t value : bound.taken) {
      EXPECT_TRUE(make(value).ok()) << bound.field << value << make(value).status().message();
    }
    for (const uint64_t value : bound.refused) {
      ASSERT_FALSE(make(value).ok()) << bound.field << value;
      EXPECT_EQ(make(value).status().code(), Code::kBadGeometry);
      EXPECT_THAT(make(value).status().message(), HasSubstr(bound.field));
      EXPECT_THAT(make(value).status().message(), HasSubstr(std::to_string(value)));
    }
  }
}

// Sections of a granule: lines and bytes of each.
using Sections = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(GeometryBounds, RequiresSectionsToFillGranuleOnlyWhenRowMajor) {
  constexpr uint64_t kGranule = 1000, kMuch = uint64_t{1} << 63;
  const auto make = [](v1::SlabFormat format, const Sections& sections) {
    v1::Geometry g = testing::SmallGeometry(2, 4, 6);
    g.set_granule_bytes(kGranule);
    g.set_slab_format(format);
    for (const auto& [lines, bytes] : sections) {
      v1::Section& section = *g.add_sections();
      section.set_lines(lines);
      section.set_bytes(bytes);
    }
    return GeometryView::Make(g).status();
  };
  constexpr auto kRows = v1::SLAB_FORMAT_ROW_MAJOR;
  EXPECT_TRUE(make(kRows, {{1, 400}, {1, 400}, {50, 4}}).ok());
  EXPECT_TRUE(make(v1::SLAB_FORMAT_GRANULE_MAJOR, {}).ok());
  for (const auto& [format, sections, why] :
       std::vector<std::tuple<v1::SlabFormat, Sections, std::string>>{
           {v1::SLAB_FORMAT_GRANULE_MAJOR, {{1, kGranule}}, "1 sections, and slab_format is not"},
           {kRows, {}, "leave 1000 bytes"},
           {kRows, {{1, 400}, {1, 400}, {50, 3}}, "leave 50 bytes"},
           {kRows, {{1, 400}, {1, 400}, {50, 5}}, "section 2 of 50 lines of 5 bytes, 200 of"},
           {kRows, {{1, kGranule}, {1, 1}}, "section 1 of 1 lines of 1 bytes, 0 of"},
           {kRows, {{0, 7}, {1, kGranule}}, "section 0 of 0 lines"},
           {kRows, {{7, 0}, {1, kGranule}}, "section 0 of 7 lines of 0 bytes"},
           {kRows, {{kMuch, 2}, {1, kGranule}}, "section 0 of 9223372036854775808 lines"},
           {kRows, {{2, kMuch}, {1, kGranule}}, "section 0 of 2 lines of 9223372036854775808"}}) {
    const Status status = make(format, sections);
    EXPECT_EQ(status.code(), Code::kBadGeometry);
    EXPECT_THAT(status.message(), HasSubstr(why));
  }
}

TEST(GeometryBounds, RequiresAscendingMoeLayersBelowLayerCount) {
  for (const auto& [first, second, taken] :
       {std::tuple(0, 2, true), {1, 2, true}, {0, 3, false}, {1, 1, false}, {2, 1, false}}) {
    v1::Geometry g = testing::SmallGeometry(3, 4, 6);
    g.clear_moe_layers();
    g.add_moe_layers(first);
    g.add_moe_layers(second);
    const auto view = GeometryView::Make(g);
    ASSERT_EQ(view.ok(), taken) << first << ", " << second;
    if (!taken) {
      EXPECT_THAT(view.status().message(), HasSubstr("moe_layers must ascend below layers = 3"));
      continue;
    }
    EXPECT_EQ(view->moe_layers(), 2u);
    for (uint32_t layer = 0; layer < 5; ++layer) {
      const int32_t want = static_cast<int>(layer) == first    ? 0
                           : static_cast<int>(layer) == second ? 1
                                                               : -1;
      EXPECT_EQ(view->ordinal(layer), want) << layer;
    }
  }
}

// Banks of 2^48 bytes, 2^40 pages each, and 8192 of them.
TEST(GeometryBounds, LimitsBankTo2To40PagesAndAllBanksTo2To61Bytes) {
  v1::Geometry g = testing::SmallGeometry(4096, 32, 4);
  g.set_granule_bytes(uint64_t{1} << 40);
  g.set_page_bytes(256);
  const auto view = GeometryView::Make(g);
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->bank_pitch(), uint64_t{1} << 48);
  g.set_experts(33);
  EXPECT_THAT(GeometryView::Make(g).status().message(), HasSubstr("pages of page_bytes = 256"));
  g.set_page_bytes(4096);
  EXPECT_THAT(GeometryView::Make(g).status().message(), HasSubstr("all banks"));
}

TEST(GeometryBounds, DerivesBytesFromGranules) {
  v1::Geometry g = testing::SmallGeometry(2, 4, 6);
  g.set_expert_tail_bytes(100);
  const GeometryView view = GeometryView::Make(g).value();
  EXPECT_EQ(view.granules(), 6u);
  EXPECT_EQ(view.granule_bytes(), 768u);
  EXPECT_EQ(view.piece_bytes(2), 2u * 768 + 100);
  EXPECT_EQ(view.expert_bytes(), 6u * 768 + 100);
}

TEST(GeometryBounds, GivesDifferentGeometriesDifferentFingerprints) {
  v1::Geometry g = testing::SmallGeometry(2, 4, 6);
  const std::string one = GeometryView::Make(g)->fingerprint();
  EXPECT_EQ(one.size(), 32u);
  g.set_dense_bytes(g.dense_bytes() + 1);
  EXPECT_NE(GeometryView::Make(g)->fingerprint(), one);
  EXPECT_EQ(Hex(std::string("\x00\xff\x0a", 3)), "00ff0a");
}

TEST(Geometry, DefaultGranuleRowsMatchPlanner) {
  std::ifstream in(TANGRAM_GOLDEN_DIR "/granule-rows.json");
  const auto golden = nlohmann::json::parse(in);
  const std::map<std::string, v1::DType> types = {{"BF16", v1::DTYPE_BF16},
                                                  {"F32", v1::DTYPE_F32},
                                                  {"FP8", v1::DTYPE_FP8_E4M3_BLOCK128},
                                                  {"MXFP4", v1::DTYPE_MXFP4}};
  for (const auto& c : golden) {
    EXPECT_EQ(DefaultGranuleRows(c[0], types.at(c[1])), c[2]) << c;
  }
  EXPECT_GT(golden.size(), 10U);
}

}  // namespace
}  // namespace tangram::layout
