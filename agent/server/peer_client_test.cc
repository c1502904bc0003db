#include "agent/server/peer_client.h"

#include <gtest/gtest.h>

#include <memory>
#include <stop_token>
#include <string>

namespace tangram {
namespace {

// Pods come and go, each with its own address.
TEST(PeerClient, DropsChannelsOfDeadPeers) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  v1::Peer::Service nothing;  // replies to every call with an error
  builder.RegisterService(&nothing);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  PeerClient client("w", grpc::InsecureChannelCredentials());
  const auto ask = [&](const std::string& address) {
    return client.OpenPull(address, {}, std::stop_token()).status().message();
  };
  const std::string lives = "127.0.0.1:" + std::to_string(port);
  EXPECT_NE(ask(lives), "");
  for (int gone = 1; gone <= 8; ++gone) {
    EXPECT_NE(ask("127.0.0.1:" + std::to_string(gone)), "") << "no process listens there";
  }
  EXPECT_EQ(client.channels(), 2U) << "the one that is connected, and the last one that was asked";
}

}  // namespace
}  // namespace tangram
