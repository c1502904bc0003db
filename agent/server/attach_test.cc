// Data with which engines attach: versions of the library's structs, and their capabilities.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <string>

#include "agent/layout/testing.h"
#include "agent/server/testing/world.h"

namespace tangram::testing {
namespace {

// Engines built before and after this library.
TEST(Attach, AcceptsEnginesOfOtherVersions) {
  World world({1});
  const std::string path = world.socket(0), token = world.token(0);
  struct {
    tg_options known;
    uint64_t more = ~uint64_t{0};
  } options;
  options.known = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  options.known.struct_size = sizeof options;
  options.known.attention_data_only = 1;
  tg_error error = TG_INIT(tg_error);
  tg_client* client = nullptr;
  ASSERT_EQ(tg_attach(&options.known, &client, &error), TG_OK) << error.message;
  EXPECT_TRUE(world.StatusOf(0).ranks(0).engine().attention_data_only());
  EXPECT_EQ(tg_get_model(client)->struct_size, sizeof(tg_model));
  EXPECT_EQ(tg_get_model(client)->slab_format, TG_SLAB_GRANULE_MAJOR);

  const v1::Layout first = ExpertLayout(world.members(), 1, false);
  auto prepared = std::async(std::launch::async,
                             [&] { return world.PrepareAll(v1::FLIP_KIND_FIRST, 1, first); });
  struct {
    tg_event known;
    uint64_t more = 7;
  } newer;
  newer.known = TG_INIT(tg_event);
  newer.known.struct_size = sizeof newer;
  ASSERT_TRUE(Eventually([&] { return tg_poll(client, 10, &newer.known, &error) == TG_OK; }))
      << error.message;
  EXPECT_EQ(newer.known.kind, TG_EVENT_PREPARE);
  EXPECT_EQ(newer.more, 7U);
  ASSERT_NE(newer.known.target, nullptr);
  EXPECT_EQ(newer.known.target->struct_size, sizeof(tg_maps));
  EXPECT_EQ(newer.known.target->piece_size, sizeof(tg_piece));
  ASSERT_EQ(tg_prepared(client, newer.known.attempt, 1, nullptr, &error), TG_OK) << error.message;
  ASSERT_TRUE(prepared.get());

  tg_event older;
  std::memset(&older, 0x55, sizeof older);
  older.struct_size = offsetof(tg_event, target_epoch);
  EXPECT_EQ(tg_poll(client, 0, &older, &error), TG_AGAIN) << error.message;
  EXPECT_EQ(older.kind, TG_EVENT_NONE);
  EXPECT_EQ(older.attempt, 0U);
  EXPECT_EQ(older.target_epoch, 0x5555555555555555U);
  older.struct_size = offsetof(tg_event, attempt);
  EXPECT_EQ(tg_poll(client, 0, &older, &error), TG_INVALID);
  EXPECT_NE(std::string(error.message).find("tg_event.struct_size"), std::string::npos);

  tg_engine_stats load{offsetof(tg_engine_stats, waiting), 100, 60, 640, 3, 99};
  EXPECT_EQ(tg_report(client, &load, &error), TG_OK);
  EXPECT_EQ(world.StatusOf(0).ranks(0).engine().running(), 3U);
  EXPECT_EQ(world.StatusOf(0).ranks(0).engine().waiting(), 0U);
  load.struct_size = 4;
  EXPECT_EQ(tg_report(client, &load, &error), TG_INVALID);
  const tg_kv_move move{0, 0, 0, 0};
  EXPECT_EQ(tg_kv_pull(client, &move, 1, 8, nullptr, &error), TG_INVALID);
  tg_detach(client);
}

TEST(Attach, RejectsEngineOfOtherSlabFormat) {
  for (const bool rows : {false, true}) {
    const v1::Geometry plain = TestGeometry();
    World world({1}, 64 << 20, "127.0.0.1", rows ? layout::testing::RowMajor(plain) : plain);
    const std::string path = world.socket(0), token = world.token(0);
    tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
    tg_error error = TG_INIT(tg_error);
    tg_client* client = nullptr;
    options.slab_formats = rows ? TG_SLAB_GRANULE_MAJOR : TG_SLAB_ROW_MAJOR;
    EXPECT_EQ(tg_attach(&options, &client, &error), TG_REFUSED);
    EXPECT_NE(std::string(error.message)
                  .find(rows ? "slab_format row-major" : "slab_format granule-major"),
              std::string::npos)
        << error.message;
    options.slab_formats = TG_SLAB_ROW_MAJOR | TG_SLAB_GRANULE_MAJOR;
    ASSERT_TRUE(Eventually([&] { return tg_attach(&options, &client, &error) == TG_OK; }));
    const tg_model* const model = tg_get_model(client);
    EXPECT_EQ(model->slab_format, rows ? TG_SLAB_ROW_MAJOR : TG_SLAB_GRANULE_MAJOR);
    ASSERT_EQ(model->section_count, rows ? 3U : 0U);
    uint64_t granule = 0;
    for (size_t i = 0; i < model->section_count; ++i) {
      const tg_section* section = TG_AT(tg_section, model->sections, model->section_size, i);
      EXPECT_EQ(section->lines, i < 2 ? 1U : model->hidden);
      granule += section->lines * section->bytes;
    }
    EXPECT_EQ(granule, rows ? model->granule_bytes : 0U);
    tg_detach(client);
  }
}

// An engine's settings are in its status. Invalid ones are rejected by name.
TEST(Attach, ReportsEngineSettings) {
  World world({1});
  const std::string path = world.socket(0), token = world.token(0);
  tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  tg_error error = TG_INIT(tg_error);
  tg_client* client = nullptr;
  std::string many;
  for (int i = 0; i < 65; ++i) many += "s" + std::to_string(i) + "=1\n";
  const std::string longer = "name=" + std::string(257, 'x');
  const struct {
    const char* settings;
    tg_code code;
    const char* what;
  } bad[] = {{"engine", TG_INVALID, "tg_options.settings: 'engine' is not name=value"},
             {"=1", TG_INVALID, "tg_options.settings: '=1' is not name=value"},
             {"a=1\na=2", TG_INVALID, "tg_options.settings: a is set twice"},
             {many.c_str(), TG_REFUSED, "declares 65 settings, the maximum is 64"},
             {longer.c_str(), TG_REFUSED, "declares setting name... of more than 256 bytes"}};
  for (const auto& b : bad) {
    options.settings = b.settings;
    EXPECT_EQ(tg_attach(&options, &client, &error), b.code) << b.what;
    EXPECT_NE(std::string(error.message).find(b.what), std::string::npos) << error.message;
  }
  options.settings = "engine=vllm\nversion=0.32.0+x=y\n";
  ASSERT_TRUE(Eventually([&] { return tg_attach(&options, &client, &error) == TG_OK; }));
  const auto told = world.StatusOf(0).ranks(0).engine().settings();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told.at("engine"), "vllm");
  EXPECT_EQ(told.at("version"), "0.32.0+x=y");
  tg_detach(client);
}

}  // namespace
}  // namespace tangram::testing
