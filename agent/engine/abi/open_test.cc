// tge_open: callers that were built for an older engine.h.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "agent/client/versioned.h"
#include "agent/engine/include/tangram/engine.h"

namespace tangram::engine {
namespace {

TEST(Open, AnOlderCallersOptionsEndWhereItSays) {
  tge_options options;
  std::memset(&options, 0xff, sizeof options);  // what lies behind an older caller's struct
  constexpr size_t kOlder = TANGRAM_UP_TO(tge_options, log_level);
  std::memset(&options, 0, kOlder);
  options.struct_size = kOlder;
  options.block_tokens = 32;
  options.serve_listen = "nowhere";
  tge_engine* engine = nullptr;
  tg_error error = TG_INIT(tg_error);
  EXPECT_EQ(tge_open(&options, &engine, &error), TG_INVALID);
  EXPECT_EQ(engine, nullptr);
  EXPECT_NE(std::string(error.message).find("'nowhere'"), std::string::npos) << error.message;
}

}  // namespace
}  // namespace tangram::engine
