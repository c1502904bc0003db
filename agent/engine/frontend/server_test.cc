#include "agent/engine/frontend/server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/base/testing/hang.h"
#include "agent/net/grpc_credentials.h"
#include "agent/net/testing/certs.h"
#include "tangram/v1/serve.grpc.pb.h"

namespace tangram::engine {
namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/tangram-frontend-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// A long prompt has more than gRPC's default of 4 MiB. The message arrives, and the session, which
// all clients of a gateway share, goes on.
TEST(FrontendServerTest, ALargeSubmitDoesNotEndTheSession) {
  Folder folder;
  net::testing::TestCa ca;
  const auto server_files = ca.Write("spiffe://tangram/w/engine/p0", folder.path, "engine");
  const auto client_files = ca.Write("spiffe://tangram/w/gateway", folder.path, "gateway");
  Inbox inbox;
  Hub hub(&inbox);
  const auto server = FrontendServer::Start("127.0.0.1:0", server_files, &hub, &inbox);
  ASSERT_TRUE(server.ok()) << server.status().message();
  (*server)->SetWorldName("w");

  const auto credentials = net::GrpcChannel(client_files);
  ASSERT_TRUE(credentials.ok()) << credentials.status().message();
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride("engine.w");
  const auto stub = v1::Serve::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string((*server)->port()), *credentials, args));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + testing::kHang);
  const auto stream = stub->Session(&context);
  v1::ServeRequest hello;
  hello.mutable_hello()->set_world("w");
  hello.mutable_hello()->set_gateway("g");
  ASSERT_TRUE(stream->Write(hello));

  constexpr int kTokens = 8 << 20;  // of 3 bytes each: 24 MiB
  v1::ServeRequest large;
  large.mutable_submit()->set_request("large");
  large.mutable_submit()->mutable_prompt()->Resize(kTokens, 150'000);
  v1::ServeRequest small;
  small.mutable_submit()->set_request("small");
  small.mutable_submit()->add_prompt(1);
  ASSERT_TRUE(stream->Write(large));
  ASSERT_TRUE(stream->Write(small));

  std::vector<InboxItem> got;
  ASSERT_TRUE(testing::Eventually([&] {
    for (InboxItem& item : inbox.TakeAll()) got.push_back(std::move(item));
    return got.size() == 2;
  }));
  EXPECT_EQ(std::get<SubmitItem>(got[0]).submit.prompt_size(), kTokens);
  EXPECT_EQ(std::get<SubmitItem>(got[1]).submit.request(), "small");
  context.TryCancel();
  stream->Finish();
}

}  // namespace
}  // namespace tangram::engine
