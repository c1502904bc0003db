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

// A server, and a gateway's session with it.
struct Serving {
  explicit Serving(size_t inbox_bytes = Inbox::kMostBytes) : inbox(inbox_bytes), hub(&inbox) {
    net::testing::TestCa ca;
    const auto server_files = ca.Write("spiffe://tangram/w/engine/p0", folder.path, "engine");
    const auto client_files = ca.Write("spiffe://tangram/w/gateway", folder.path, "gateway");
    server = FrontendServer::Start("127.0.0.1:0", server_files, &hub, &inbox).value();
    server->SetWorldName("w");
    grpc::ChannelArguments args;
    args.SetSslTargetNameOverride("engine.w");
    stub =
        v1::Serve::NewStub(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server->port()),
                                                     net::GrpcChannel(client_files).value(), args));
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + testing::kHang);
    stream = stub->Session(&context);
    v1::ServeRequest hello;
    hello.mutable_hello()->set_world("w");
    hello.mutable_hello()->set_gateway("g");
    EXPECT_TRUE(stream->Write(hello));
  }
  ~Serving() {
    context.TryCancel();
    stream->Finish();
  }

  Folder folder;
  Inbox inbox;
  Hub hub;
  std::unique_ptr<FrontendServer> server;
  std::unique_ptr<v1::Serve::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ServeRequest, v1::ServeReply>> stream;
};

v1::ServeRequest SubmitOf(const std::string& request, int tokens, uint32_t token) {
  v1::ServeRequest out;
  out.mutable_submit()->set_request(request);
  out.mutable_submit()->mutable_prompt()->Resize(tokens, token);
  return out;
}

// A long prompt exceeds gRPC's default of 4 MiB. The message arrives, and the session, which all
// clients of a gateway share, continues.
TEST(FrontendServerTest, KeepsSessionAfterLargeSubmit) {
  Serving serving;
  constexpr int kTokens = 8 << 20;  // of 3 bytes each: 24 MiB
  ASSERT_TRUE(serving.stream->Write(SubmitOf("large", kTokens, 150'000)));
  ASSERT_TRUE(serving.stream->Write(SubmitOf("small", 1, 1)));

  std::vector<InboxItem> got;
  ASSERT_TRUE(testing::Eventually([&] {
    for (InboxItem& item : serving.inbox.TakeAll()) got.push_back(std::move(item));
    return got.size() == 2;
  }));
  EXPECT_EQ(std::get<SubmitItem>(got[0]).submit.prompt_size(), kTokens);
  EXPECT_EQ(std::get<SubmitItem>(got[1]).submit.request(), "small");
}

// The step thread takes no items, as in a long flip: a submit that does not fit is rejected.
TEST(FrontendServerTest, RejectsSubmitsAsBusyWhenStepsStop) {
  Serving serving(10'000);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(serving.stream->Write(SubmitOf(std::to_string(i), 1'000, 1)));
  }
  v1::ServeReply reply;
  ASSERT_TRUE(serving.stream->Read(&reply));
  ASSERT_TRUE(reply.has_refused());
  EXPECT_EQ(reply.refused().code(), v1::Refused::CODE_BUSY);
  const int first = std::stoi(reply.refused().request());
  EXPECT_GT(first, 5);
  EXPECT_EQ(serving.inbox.TakeAll().size(), static_cast<size_t>(first));
}

}  // namespace
}  // namespace tangram::engine
