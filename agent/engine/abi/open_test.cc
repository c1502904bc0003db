// tge_open: callers that were built for an older engine.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "agent/client/versioned.h"
#include "agent/engine/include/tangram/engine.h"

namespace tangram::engine {
namespace {

TEST(Open, IgnoresBytesBeyondOptionsOfOlderCaller) {
  tge_options options;
  std::memset(&options, 0xff, sizeof options);  // garbage beyond an older caller's struct
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

// The call cannot report a failure, and a request that is not in the list is lost: the process must
// end. An exception would pass through frames of C, or of Python.
TEST(ManifestDeathTest, EndsProcessWhenRequestCannotBeAdded) {
  // An empty list, as the library makes it before the call: opaque to callers.
  alignas(void*) unsigned char memory[64] = {};
  auto* const manifest = reinterpret_cast<tge_manifest*>(memory);
  tge_request request{};
  request.struct_size = sizeof request;
  request.request = "r";
  const uint32_t block = 0;
  request.blocks = &block;
  request.block_count = PTRDIFF_MAX / sizeof block;  // too many for any memory
  EXPECT_DEATH(
      {
        try {
          tge_manifest_add(manifest, &request);
        } catch (const std::exception&) {
          std::fprintf(stderr, "it came through\n");
          std::_Exit(0);
        }
      },
      "terminate|exceeds maximum");  // the latter from AddressSanitizer
}

}  // namespace
}  // namespace tangram::engine
