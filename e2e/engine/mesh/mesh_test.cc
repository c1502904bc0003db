#include "e2e/engine/mesh/mesh.h"

#include <gtest/gtest.h>

#include <thread>

#include "e2e/engine/mesh/communicator.h"

namespace tangram::engine {
namespace {

using std::chrono::milliseconds;

struct Node {
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Patience> patience;
  Communicator comm;
};

// Nodes a, b, c ..., connected to one another.
std::vector<Node> Connected(size_t count, milliseconds timeout = milliseconds(5000)) {
  std::vector<Node> nodes(count);
  std::vector<PeerAddress> peers;
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    nodes[i].mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
    names.push_back(std::string(1, static_cast<char>('a' + i)));
    nodes[i].mesh->SetSelf("w", names.back());
    peers.push_back({names.back(), "127.0.0.1:" + std::to_string(nodes[i].mesh->port())});
  }
  for (size_t i = 0; i < count; ++i) {
    nodes[i].mesh->Want(peers);
    nodes[i].patience =
        std::make_unique<Patience>(Patience::Bounds{.least = timeout, .most = timeout});
    nodes[i].comm = Communicator(nodes[i].mesh.get(), 3, static_cast<uint32_t>(i), names,
                                 nodes[i].patience.get());
  }
  for (int round = 0; round < 1000; ++round) {
    bool all = true;
    for (Node& node : nodes) {
      node.mesh->Progress(1);
      all = all && node.mesh->Connected(names);
    }
    if (all) return nodes;
  }
  ADD_FAILURE() << nodes[0].mesh->Missing(names);
  return nodes;
}

TEST(MeshTest, ManyLargeExchangesArriveWhereTheyBelong) {
  std::vector<Node> nodes = Connected(4);
  std::vector<std::thread> threads;
  for (uint32_t me = 0; me < nodes.size(); ++me) {
    threads.emplace_back([&, me] {
      for (uint64_t step = 0; step < 20; ++step) {
        std::vector<Bytes> send(4), recv;
        // Sizes from nothing to far beyond a socket's buffer.
        for (uint32_t to = 0; to < 4; ++to) {
          send[to].assign((me * 7 + to * 3 + step) % 5 * 700000, static_cast<uint8_t>(me * 4 + to));
        }
        const std::vector<uint32_t> all{0, 1, 2, 3};
        const Status status = nodes[me].comm.Exchange(step, 9, all, send, &recv);
        ASSERT_TRUE(status.ok()) << status.message();
        for (uint32_t from = 0; from < 4; ++from) {
          ASSERT_EQ(recv[from], Bytes((from * 7 + me * 3 + step) % 5 * 700000,
                                      static_cast<uint8_t>(from * 4 + me)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MeshTest, APeerInAnotherExchangeIsAnError) {
  std::vector<Node> nodes = Connected(2);
  Status other;
  std::thread thread([&] {
    std::vector<Bytes> recv;
    other = nodes[1].comm.Gather(8, 0, {1}, &recv);
  });
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(7, 0, {1}, &recv);
  thread.join();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("b is in epoch 3 step 8"), std::string::npos) << status.message();
  EXPECT_FALSE(other.ok());
}

TEST(MeshTest, APeerThatDiesIsNamed) {
  std::vector<Node> nodes = Connected(3);
  nodes[2].mesh.reset();
  std::thread thread([&] {
    std::vector<Bytes> recv;
    EXPECT_FALSE(nodes[1].comm.Gather(0, 0, {1}, &recv).ok());
  });
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(0, 0, {1}, &recv);
  thread.join();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("no connection with c"), std::string::npos) << status.message();
}

// What a peer said before it hung up waits to be taken; that it hung up shows all the same.
TEST(MeshTest, APeerThatHungUpBehindItsFrame) {
  std::vector<Node> nodes = Connected(2);
  const std::string a = "a", b = "b";
  std::thread thread([&] {
    std::vector<Bytes> recv;
    EXPECT_TRUE(nodes[1].comm.Gather(0, 0, {1}, &recv).ok());
    EXPECT_FALSE(nodes[1].comm.Gather(1, 0, {2}, &recv).ok());
  });
  std::vector<Bytes> recv;
  EXPECT_TRUE(nodes[0].comm.Gather(0, 0, {1}, &recv).ok());
  while (!nodes[0].mesh->Waiting(b)) nodes[0].mesh->Progress(1);
  EXPECT_FALSE(nodes[0].mesh->LeftFrame(b));
  nodes[0].mesh->HangUp(b);  // so that b's exchange ends
  thread.join();
  for (int round = 0; round < 1000 && !nodes[0].mesh->Connected({&b, 1}); ++round) {
    for (Node& node : nodes) node.mesh->Progress(1);
  }
  ASSERT_TRUE(nodes[0].mesh->Connected({&b, 1}));

  std::thread again([&] {
    std::vector<Bytes> none;
    Patience brief({.least = milliseconds(50), .most = milliseconds(50)});
    Communicator(nodes[1].mesh.get(), 4, 1, {a, b}, &brief).Gather(0, 0, {1}, &none);
    nodes[1].mesh->HangUpAll();
  });
  again.join();
  while (!nodes[0].mesh->Waiting(b)) nodes[0].mesh->Progress(1);
  EXPECT_TRUE(nodes[0].mesh->Connected({&b, 1})) << "nobody looked";
  EXPECT_TRUE(nodes[0].mesh->LeftFrame(b));
}

TEST(MeshTest, ASilentPeerIsAnErrorAfterTheTimeout) {
  std::vector<Node> nodes = Connected(2, milliseconds(150));
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(4, 2, {1}, &recv);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("nothing from b for 150 ms"), std::string::npos)
      << status.message();
}

// c stands still. b waits for c, a waits for b: who waits says so, and only c is silent.
TEST(MeshTest, WhoWaitsForTheSilentOneIsNotSilent) {
  std::vector<Node> nodes = Connected(3, milliseconds(200));
  Status atB;
  std::thread thread([&] {
    std::vector<Bytes> recv, send(3);
    for (int twice = 0; twice < 2; ++twice) {  // b is more patient with c than a is with b
      atB = nodes[1].comm.Exchange(0, 0, std::vector<uint32_t>{1, 2}, send, &recv);
    }
    nodes[1].mesh->HangUpAll();
  });
  std::vector<Bytes> recv;
  const Status status =
      nodes[0].comm.Exchange(0, 0, std::vector<uint32_t>{0, 1}, std::vector<Bytes>(3), &recv);
  thread.join();
  EXPECT_NE(atB.message().find("nothing from c for 200 ms"), std::string::npos) << atB.message();
  EXPECT_NE(status.message().find("no connection with b"), std::string::npos) << status.message();
}

TEST(MeshTest, WhoWaitsForEverIsGivenUpInTheEnd) {
  std::vector<Node> nodes = Connected(3, milliseconds(100));
  std::thread thread([&] {
    std::vector<Bytes> recv;
    Patience patience({.least = milliseconds(100), .most = milliseconds(60000)});
    Communicator comm(nodes[1].mesh.get(), 3, 1, {"a", "b", "c"}, &patience);
    EXPECT_FALSE(
        comm.Exchange(0, 0, std::vector<uint32_t>{1, 2}, std::vector<Bytes>(3), &recv).ok());
  });
  std::vector<Bytes> recv;
  const Status status =
      nodes[0].comm.Exchange(0, 0, std::vector<uint32_t>{0, 1}, std::vector<Bytes>(3), &recv);
  nodes[2].mesh.reset();  // ends b's wait
  thread.join();
  EXPECT_NE(status.message().find("after 300 ms these still wait for somebody: b"),
            std::string::npos)
      << status.message();
}

TEST(MeshTest, ALeaverMayCloseAsSoonAsItIsThrough) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Node> nodes = Connected(3);
    std::vector<std::thread> threads;
    for (uint32_t me = 0; me < 3; ++me) {
      threads.emplace_back([&, me] {
        std::vector<Bytes> recv;
        if (me == 1) std::this_thread::sleep_for(milliseconds(5));
        const Status status = nodes[me].comm.Gather(0, 0, Bytes(100000, 1), &recv);
        EXPECT_TRUE(status.ok()) << status.message();
        if (me == 2) nodes[me].mesh->KeepOnly({});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(MeshTest, StrangersAreNotLetIn) {
  auto mesh = std::move(Mesh::Listen("127.0.0.1:0")).value();
  mesh->SetSelf("w", "b");
  auto other = std::move(Mesh::Listen("127.0.0.1:0")).value();
  other->SetSelf("another world", "a");
  const std::vector<PeerAddress> peers{{"b", "127.0.0.1:" + std::to_string(mesh->port())}};
  other->Want(peers);
  const std::vector<std::string> b{"b"}, a{"a"};
  for (int i = 0; i < 50; ++i) {
    other->Progress(1);
    mesh->Progress(1);
  }
  EXPECT_FALSE(other->Connected(b));
  EXPECT_FALSE(mesh->Connected(a));
}

}  // namespace
}  // namespace tangram::engine
