#include "agent/net/grpc_credentials.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>

#include "agent/net/testing/certs.h"
#include "tangram/v1/agent.grpc.pb.h"

namespace tangram::net {
namespace {

using testing::TestCa;

struct Folder {
  Folder() {
    char name[] = "/tmp/tangram-grpc-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::unique_ptr<grpc::Server> Serve(const TlsFiles& files, int* port) {
  const auto credentials = GrpcServer(files);
  EXPECT_TRUE(credentials.ok()) << credentials.status().message();
  static v1::Peer::Service service;  // a server without one listens to nobody
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.AddListeningPort("127.0.0.1:0", *credentials, port);
  return builder.BuildAndStart();
}

std::shared_ptr<grpc::Channel> Dial(const TlsFiles& files, int port, const std::string& name) {
  const auto credentials = GrpcChannel(files);
  EXPECT_TRUE(credentials.ok()) << credentials.status().message();
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride(name);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), *credentials, args);
}

// Both sides know each other. An attempt that was refused is not made again.
bool Meets(const TlsFiles& files, int port, const std::string& name = "agent.w") {
  const auto channel = Dial(files, port, name);
  const auto until = std::chrono::system_clock::now() + std::chrono::seconds(60);
  for (auto state = channel->GetState(true); state != GRPC_CHANNEL_READY;
       state = channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    if (!channel->WaitForStateChange(state, until)) return false;
  }
  return true;
}

TEST(GrpcCredentials, OnlyWhoBelongsToTheWorldMeets) {
  const Folder folder;
  const TestCa ca, other;
  int port = 0;
  const auto server = Serve(ca.Write("spiffe://tangram/w/agent/p0", folder.path, "server"), &port);
  const TlsFiles mine = ca.Write("spiffe://tangram/w/agent/p1", folder.path, "mine");
  EXPECT_TRUE(Meets(mine, port));
  EXPECT_FALSE(Meets(mine, port, "engine.w")) << "an agent is no engine";
  EXPECT_FALSE(Meets(mine, port, "agent.v"));
  EXPECT_FALSE(Meets(other.Write("spiffe://tangram/w/agent/p2", folder.path, "other"), port));
  server->Shutdown();
}

TEST(GrpcCredentials, AFileThatIsNotThereIsNamed) {
  const auto server = GrpcServer({"/nowhere/ca.crt", "/nowhere/tls.crt", "/nowhere/tls.key"});
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("/nowhere/ca.crt"), std::string::npos);
}

TEST(GrpcCredentials, RenewedFilesHoldForWhoComesAfter) {
  const Folder folder;
  const TestCa ca, next;
  int port = 0;
  const auto server = Serve(ca.Write("spiffe://tangram/w/agent/p0", folder.path, "server"), &port);
  const TlsFiles mine = ca.Write("spiffe://tangram/w/agent/p1", folder.path, "mine");
  const TlsFiles later = next.Write("spiffe://tangram/w/agent/p1", folder.path, "later");
  const auto before = Dial(mine, port, "agent.w");
  ASSERT_TRUE(
      before->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60)));
  ASSERT_FALSE(Meets(later, port));

  next.Write("spiffe://tangram/w/agent/p0", folder.path, "server");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!Meets(later, port) && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_TRUE(Meets(later, port));
  EXPECT_FALSE(Meets(mine, port)) << "of the authority that was";
  EXPECT_EQ(before->GetState(false), GRPC_CHANNEL_READY) << "who was there before goes on";
  server->Shutdown();
}

}  // namespace
}  // namespace tangram::net
