#include "agent/server/engine_server.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "agent/base/fault.h"
#include "agent/base/testing/hang.h"
#include "agent/base/testing/no_threads.h"
#include "agent/server/testing/world.h"

namespace tangram::testing {
namespace {

TEST(EngineServer, ReportsErrorWhenThreadCannotStart) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("engines-" + std::to_string(getpid()));
  EngineServer server({.path = path, .token = "t"});
  WithoutThreads([&] { EXPECT_EQ(server.Start(nullptr).code(), Code::kUnavailable); });
}

// An attempt begins and ends while an engine is being admitted. The engine must not learn of
// either: its first message is the reply to its attach.
TEST(EngineServer, SendsNothingBeforeAttachReply) {
  World world({1});
  const std::string points = world.dir() + "/points", held = points + "/engine.attach";
  std::filesystem::create_directory(points);
  std::ofstream(held + ".armed").close();
  fault::Follow(points);
  const std::string path = world.socket(0), token = world.token(0);
  const tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  tg_error error = TG_INIT(tg_error);
  tg_client* client = nullptr;
  auto attached =
      std::async(std::launch::async, [&] { return tg_attach(&options, &client, &error); });
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(held + ".hit"); }));

  grpc::ClientContext context;
  auto prepared = std::async(std::launch::async, [&] {
    const v1::Layout first = ExpertLayout(world.members(), 1, false);
    v1::PrepareResponse response;
    return world.Driver(0)->Prepare(&context, world.Request(0, v1::FLIP_KIND_FIRST, 1, first),
                                    &response);
  });
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(points + "/prepare.before.seen"); }));
  context.TryCancel();
  EXPECT_FALSE(prepared.get().ok());
  grpc::ClientContext next;
  v1::AbortRequest abort;
  *abort.mutable_header() = World::HeaderOf(0, 1);
  v1::AbortResponse aborted;
  (void)world.Driver(0)->Abort(&next, abort, &aborted);  // waits until the previous one has ended
  std::filesystem::remove(held + ".armed");
  EXPECT_EQ(attached.get(), TG_OK) << error.message;
  fault::Follow("");
  if (client != nullptr) tg_detach(client);
}

}  // namespace
}  // namespace tangram::testing
