#include "agent/net/grpc_credentials.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

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
  static v1::Peer::Service service;  // a server without a service does not listen
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.AddListeningPort("127.0.0.1:0", *credentials, port);
  return builder.BuildAndStart();
}

std::shared_ptr<grpc::Channel> Dial(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                    int port, const std::string& name) {
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride(name);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a separate connection
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), credentials, args);
}

std::shared_ptr<grpc::Channel> Dial(const TlsFiles& files, int port, const std::string& name) {
  const auto credentials = GrpcChannel(files);
  EXPECT_TRUE(credentials.ok()) << credentials.status().message();
  return Dial(*credentials, port, name);
}

// True once both sides are authenticated. A rejected attempt is not repeated.
bool Connects(grpc::Channel& channel) {
  const auto until = std::chrono::system_clock::now() + std::chrono::seconds(60);
  for (auto state = channel.GetState(true); state != GRPC_CHANNEL_READY;
       state = channel.GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    if (!channel.WaitForStateChange(state, until)) return false;
  }
  return true;
}

bool Meets(const TlsFiles& files, int port, const std::string& name = "agent.w") {
  return Connects(*Dial(files, port, name));
}

TEST(GrpcCredentials, ConnectsOnlyPeersOfWorld) {
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

// The first connections of a process, several concurrently.
TEST(GrpcCredentials, ConnectsConcurrentlyOnFirstUse) {
  const Folder folder;
  const TestCa ca;
  int port = 0;
  const auto server = Serve(ca.Write("spiffe://tangram/w/agent/p0", folder.path, "server"), &port);
  const TlsFiles mine = ca.Write("spiffe://tangram/w/agent/p1", folder.path, "mine");
  constexpr int kAtOnce = 8;
  for (int turn = 0; turn < 50; ++turn) {
    const auto credentials = GrpcChannel(mine);
    ASSERT_TRUE(credentials.ok()) << credentials.status().message();
    std::barrier begin(kAtOnce);
    std::atomic<int> met{0};
    {
      std::vector<std::jthread> all;
      for (int i = 0; i < kAtOnce; ++i) {
        all.emplace_back([&] {
          begin.arrive_and_wait();
          met += Connects(*Dial(*credentials, port, "agent.w")) ? 1 : 0;
        });
      }
    }
    ASSERT_EQ(met, kAtOnce) << turn;
  }
  server->Shutdown();
}

TEST(GrpcCredentials, NamesMissingFile) {
  const auto server = GrpcServer({"/nowhere/ca.crt", "/nowhere/tls.crt", "/nowhere/tls.key"});
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("/nowhere/ca.crt"), std::string::npos);
}

TEST(GrpcCredentials, UsesRenewedFilesForNewConnections) {
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
