#include "agent/engine/mesh/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "agent/base/testing/fake_time.h"
#include "agent/base/testing/hang.h"
#include "agent/engine/mesh/communicator.h"
#include "agent/engine/mesh/wire.h"
#include "agent/net/blocking.h"
#include "agent/net/testing/certs.h"
#include "agent/net/testing/thief.h"

namespace tangram::engine {
namespace {

using std::chrono::milliseconds;
using tangram::testing::FakeTime;
using tangram::testing::kHang;

const net::testing::TestCa& Ca() {
  static const net::testing::TestCa ca;
  return ca;
}

// Credentials of the pod "pod-<member>", which has that member.
std::shared_ptr<net::Credentials> Of(const std::string& member) {
  return Ca().Open("w", "engine", "pod-" + member);
}

std::unique_ptr<Mesh> Listening(const std::string& member, Mesh::Limits limits = Mesh::Limits(),
                                TimeSource& time = SteadyTime()) {
  auto mesh = std::move(Mesh::Listen("127.0.0.1:0", limits, time)).value();
  mesh->SetSelf("w", member, Of(member));
  return mesh;
}

PeerAddress At(const std::string& member, const Mesh& mesh) {
  return {member, "127.0.0.1:" + std::to_string(mesh.port()), "pod-" + member};
}

// Whether `done` becomes true within kHang while these make progress.
bool Soon(const std::vector<Mesh*>& meshes, const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + kHang;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    for (Mesh* mesh : meshes) mesh->Progress(1);
  }
  return true;
}

struct Node {
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Patience> patience;
  Communicator comm;
};

// Nodes a, b, c ..., connected to one another.
std::vector<Node> Connected(size_t count, milliseconds timeout = kHang,
                            TimeSource& time = SteadyTime()) {
  std::vector<Node> nodes(count);
  std::vector<PeerAddress> peers;
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    names.push_back(std::string(1, static_cast<char>('a' + i)));
    nodes[i].mesh = Listening(names.back(), Mesh::Limits(), time);
    peers.push_back(At(names.back(), *nodes[i].mesh));
  }
  for (size_t i = 0; i < count; ++i) {
    nodes[i].mesh->Want(peers);
    nodes[i].patience =
        std::make_unique<Patience>(Patience::Bounds{.least = timeout, .most = timeout});
    nodes[i].comm = Communicator(nodes[i].mesh.get(), 3, static_cast<uint32_t>(i), names,
                                 nodes[i].patience.get());
  }
  std::vector<Mesh*> meshes;
  for (const Node& node : nodes) meshes.push_back(node.mesh.get());
  EXPECT_TRUE(Soon(meshes, [&] {
    return std::ranges::all_of(meshes, [&](Mesh* mesh) { return mesh->Connected(names); });
  })) << nodes[0].mesh->Missing(names);
  return nodes;
}

// Expects that the node's failed exchange names this rank, with this cause.
void ExpectMissed(const Node& node, uint32_t rank, tg_cause cause) {
  const auto& missed = node.comm.missed();
  const auto at = std::find_if(missed.begin(), missed.end(),
                               [&](const tg_missed& one) { return one.rank == rank; });
  ASSERT_NE(at, missed.end());
  EXPECT_EQ(at->cause, static_cast<uint32_t>(cause));
  EXPECT_EQ(at->doing, static_cast<uint32_t>(TG_IN_VOTE));
}

TEST(MeshTest, DeliversManyLargeExchanges) {
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

TEST(MeshTest, FailsWhenPeerIsInAnotherExchange) {
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
  ExpectMissed(nodes[0], 1, TG_GAVE_UP);
  EXPECT_FALSE(other.ok());
}

// After a failed exchange the caller may free its bytes, even if some are still being sent.
TEST(MeshTest, ReleasesCallerBytesAfterFailedExchange) {
  FakeTime time;
  std::vector<Node> nodes = Connected(2, milliseconds(100), time);
  const Bytes sent(32 << 20, 7);  // far beyond a socket's buffers; b reads nothing yet
  std::vector<Bytes> send{{}, sent}, recv;
  const std::vector<uint32_t> all{0, 1};
  std::atomic<bool> over = false;
  std::thread clock([&] {
    while (!over) time.Advance(milliseconds(25));
  });
  const Status failed = nodes[0].comm.Exchange(5, 9, all, send, &recv);
  over = true;
  clock.join();
  EXPECT_EQ(failed.code(), Code::kUnavailable) << failed.message();
  send[1].assign(send[1].size(), 0xee);  // simulates the memory's next owner

  std::vector<Bytes> late;
  std::atomic<bool> came = false;
  std::thread reader([&] {
    Patience patience({.least = kHang, .most = kHang});
    Communicator comm(nodes[1].mesh.get(), 3, 1, {"a", "b"}, &patience);
    const Status status = comm.Exchange(5, 9, all, std::vector<Bytes>(2), &late);
    EXPECT_TRUE(status.ok()) << status.message();
    came = true;
  });
  EXPECT_TRUE(Soon({nodes[0].mesh.get()}, [&] { return came.load(); }));
  reader.join();
  ASSERT_EQ(late.size(), 2u);
  EXPECT_TRUE(late[0] == sent) << "b has other bytes than were sent";
}

TEST(MeshTest, NamesDeadPeer) {
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
  ExpectMissed(nodes[0], 2, TG_GONE);
}

// A peer's last frame waits to be taken. Its disconnect is visible before that.
TEST(MeshTest, DetectsDisconnectBehindUnreadFrame) {
  std::vector<Node> nodes = Connected(2);
  const std::string a = "a", b = "b";
  std::thread thread([&] {
    std::vector<Bytes> recv;
    EXPECT_TRUE(nodes[1].comm.Gather(0, 0, {1}, &recv).ok());
    EXPECT_FALSE(nodes[1].comm.Gather(1, 0, {2}, &recv).ok());
  });
  std::vector<Bytes> recv;
  EXPECT_TRUE(nodes[0].comm.Gather(0, 0, {1}, &recv).ok());
  ASSERT_TRUE(Soon({nodes[0].mesh.get()}, [&] { return nodes[0].mesh->Waiting(b).has_value(); }));
  EXPECT_FALSE(nodes[0].mesh->LeftFrame(b));
  nodes[0].mesh->HangUp(b);  // so that b's exchange ends
  thread.join();
  ASSERT_TRUE(Soon({nodes[0].mesh.get(), nodes[1].mesh.get()}, [&] {
    return nodes[0].mesh->Connected({&b, 1}) && nodes[1].mesh->Connected({&a, 1});
  }));

  std::thread again([&] {
    std::vector<Bytes> none;
    Patience brief({.least = milliseconds(50), .most = milliseconds(50)});
    (void)Communicator(nodes[1].mesh.get(), 4, 1, {a, b}, &brief).Gather(0, 0, {1}, &none);
    nodes[1].mesh->HangUpAll();
  });
  again.join();
  ASSERT_TRUE(Soon({nodes[0].mesh.get()}, [&] { return nodes[0].mesh->Waiting(b).has_value(); }));
  EXPECT_TRUE(nodes[0].mesh->Connected({&b, 1})) << "nobody looked";
  EXPECT_TRUE(nodes[0].mesh->LeftFrame(b));
}

TEST(MeshTest, FailsAfterTimeoutWhenPeerIsUnresponsive) {
  FakeTime time;
  std::vector<Node> nodes = Connected(2, milliseconds(150), time);
  const auto begun = time.Elapsed();
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(4, 2, {1}, &recv);
  EXPECT_GE(time.Elapsed() - begun, milliseconds(150));
  EXPECT_LE(time.Elapsed() - begun, milliseconds(150) + Wait::kLook);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("no message from b within 150 ms"), std::string::npos)
      << status.message();
  ExpectMissed(nodes[0], 1, TG_SILENT);
}

// c is stopped. b waits for c, a waits for b. Waiting ranks send heartbeats, so only c times out.
TEST(MeshTest, DoesNotTimeOutPeerWaitingForUnresponsiveRank) {
  FakeTime time;
  std::vector<Node> nodes = Connected(3, milliseconds(200), time);
  Status atB;
  time.Join();
  std::thread thread([&] {
    std::vector<Bytes> recv, send(3);
    for (int twice = 0; twice < 2; ++twice) {  // b waits longer for c than a waits for b
      atB = nodes[1].comm.Exchange(0, 0, std::vector<uint32_t>{1, 2}, send, &recv);
    }
    nodes[1].mesh->HangUpAll();
    time.Leave();
  });
  std::vector<Bytes> recv;
  const Status status =
      nodes[0].comm.Exchange(0, 0, std::vector<uint32_t>{0, 1}, std::vector<Bytes>(3), &recv);
  time.Leave();
  thread.join();
  EXPECT_NE(atB.message().find("no message from c within 200 ms"), std::string::npos)
      << atB.message();
  EXPECT_NE(status.message().find("no connection with b"), std::string::npos) << status.message();
}

// b abandoned the epoch, disconnected, and was connected again before a polled. b lives but takes
// no data from a. (A world once stopped for 30 s this way, without any timeout.)
TEST(MeshTest, FailsWhenPeerStoppedInSameEpoch) {
  std::vector<Node> nodes = Connected(2);
  std::atomic<bool> through{false};
  std::thread thread([&] {
    while (!through) {
      nodes[1].mesh->Progress(5);
      nodes[1].mesh->BeatStill(3);
    }
  });
  std::vector<Bytes> recv;
  const Status status =
      nodes[0].comm.Exchange(7, 0, std::vector<uint32_t>{0, 1}, std::vector<Bytes>(2), &recv);
  through = true;
  thread.join();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("b has stopped in epoch 3"), std::string::npos)
      << status.message();
  ExpectMissed(nodes[0], 1, TG_GAVE_UP);
}

// The same in an older epoch, which b does not leave by itself: a flipped, b saw its agent die in
// the flip. The new connection is all that a can observe. (A world once stopped for 30 s this way,
// in one of some thirty deaths of an agent at that point.)
TEST(MeshTest, FailsWhenPeerReconnectsDuringExchange) {
  std::vector<Node> nodes = Connected(2);
  const auto again = Listening("a");  // the same member, by another connection
  std::atomic<bool> through{false};
  std::thread thread([&] {
    EXPECT_TRUE(
        Soon({nodes[0].mesh.get()}, [&] { return nodes[0].mesh->Waiting("b").has_value(); }));
    again->Want(std::vector<PeerAddress>{At("b", *nodes[1].mesh)});
    while (!through) {
      again->Progress(5);
      again->BeatStill(2);
    }
  });
  std::vector<Bytes> recv;
  const Status status =
      nodes[1].comm.Exchange(7, 0, std::vector<uint32_t>{0, 1}, std::vector<Bytes>(2), &recv);
  through = true;
  thread.join();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("no connection with a: the peer connected again"),
            std::string::npos)
      << status.message();
}

// In a repair, finished ranks wait for those that are still in the previous epoch.
TEST(MeshTest, WaitsForPeerStoppedInOlderEpoch) {
  std::vector<Node> nodes = Connected(2);
  nodes[1].mesh->BeatStill(2);
  std::thread thread([&] {
    std::this_thread::sleep_for(milliseconds(20));
    std::vector<Bytes> recv;
    const Status status = nodes[1].comm.Gather(7, 0, Bytes(10, 1), &recv);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(7, 0, Bytes(10, 1), &recv);
  thread.join();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(MeshTest, LimitsTotalWaitForPeerWaitingForAnotherRank) {
  FakeTime time;
  std::vector<Node> nodes = Connected(3, milliseconds(100), time);
  time.Join();
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
  EXPECT_NE(status.message().find("timed out after 300 ms, these peers wait for another rank: b"),
            std::string::npos)
      << status.message();
  ExpectMissed(nodes[0], 1, TG_STUCK);
}

// In a flip one rank may fetch much more KV than the others, for as long as its bytes take. It
// sends heartbeats meanwhile, and the others wait for it without a total limit.
TEST(MeshTest, WaitsInFlipForPeerSendingHeartbeats) {
  FakeTime time;
  std::vector<Node> nodes = Connected(2, milliseconds(100), time);
  constexpr milliseconds kFetches{1000};  // more than three times the maximum timeout
  time.Join();
  std::thread thread([&] {
    while (time.Elapsed() < kFetches) {
      nodes[1].mesh->Progress(20);
      nodes[1].mesh->Beat();
    }
    std::vector<Bytes> recv;
    const Status status = nodes[1].comm.Gather(0, 5, {2}, &recv);
    EXPECT_TRUE(status.ok()) << status.message();
    time.Leave();
  });
  nodes[0].comm.SetDoing(TG_IN_FLIP);
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(0, 5, {1}, &recv);
  time.Leave();
  thread.join();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(recv[1], Bytes{2});
}

// The timeout for a peer without heartbeats holds in a flip, too.
TEST(MeshTest, FailsInFlipAfterTimeoutWhenPeerIsUnresponsive) {
  FakeTime time;
  std::vector<Node> nodes = Connected(2, milliseconds(100), time);
  nodes[0].comm.SetDoing(TG_IN_FLIP);
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(0, 5, {1}, &recv);
  EXPECT_NE(status.message().find("no message from b within 100 ms"), std::string::npos)
      << status.message();
  ASSERT_EQ(nodes[0].comm.missed().size(), 1u);
  EXPECT_EQ(nodes[0].comm.missed()[0].cause, static_cast<uint32_t>(TG_SILENT));
  EXPECT_EQ(nodes[0].comm.missed()[0].doing, static_cast<uint32_t>(TG_IN_FLIP));
}

TEST(MeshTest, AllowsLeaverToCloseAfterItsExchange) {
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

// --- Admission ---------------------------------------------------------------------------

// The bytes of a first frame.
Bytes FirstFrame(const Hello& hello) {
  const Bytes payload = hello.Encode();
  FrameHeader header;
  header.kind = FrameKind::kHello;
  header.length = payload.size();
  ByteWriter out;
  out.Put(header);
  out.PutRaw(payload.data(), payload.size());
  return out.Take();
}

// Sends a hello to `mesh` with this certificate, without checks of its own. Whether it was
// welcomed.
bool Welcomed(Mesh& mesh, const std::optional<net::TlsTexts>& shows, const Hello& hello) {
  const Bytes frame = FirstFrame(hello);
  std::string answer;
  std::atomic<bool> over = false;
  std::thread thread([&] {
    answer = net::testing::Steal("127.0.0.1:" + std::to_string(mesh.port()), shows,
                                 {frame.begin(), frame.end()}, 1);
    over = true;
  });
  EXPECT_TRUE(Soon({&mesh}, [&] { return over.load(); }));
  thread.join();
  return !answer.empty();
}

net::TlsTexts Shows(const std::string& member) {
  return Ca().Issue("spiffe://tangram/w/engine/pod-" + member);
}

TEST(MeshTest, RejectsUnauthenticatedPeers) {
  const auto mesh = Listening("b");
  const net::testing::TestCa other;
  const Hello hello{"w", "a", "b"};
  EXPECT_FALSE(Welcomed(*mesh, {}, hello)) << "no certificate";
  EXPECT_FALSE(Welcomed(*mesh, other.Issue("spiffe://tangram/w/engine/pod-a"), hello));
  EXPECT_FALSE(Welcomed(*mesh, Ca().Issue("spiffe://tangram/v/engine/pod-a"), hello));
  EXPECT_FALSE(Welcomed(*mesh, Ca().Issue("spiffe://tangram/w/agent/pod-a"), hello));
  EXPECT_FALSE(Welcomed(*mesh, Shows("a"), {"v", "a", "b"})) << "looks for another world";
  EXPECT_FALSE(Welcomed(*mesh, Shows("a"), {"w", "a", "c"})) << "looks for another member";
  EXPECT_FALSE(Welcomed(*mesh, Shows("c"), {"w", "c", "b"})) << "the smaller id dials";
  EXPECT_TRUE(Welcomed(*mesh, Shows("a"), hello));
}

// A certificate of the world may break only connections of its own pod.
TEST(MeshTest, KeepsConnectionWhenAnotherPodSendsHello) {
  std::vector<Node> nodes = Connected(2);
  Mesh& b = *nodes[1].mesh;
  EXPECT_FALSE(Welcomed(b, {}, {"w", "a", "b"}));
  EXPECT_FALSE(Welcomed(b, Shows("c"), {"w", "a", "b"})) << "a stolen pod speaks for a";
  std::thread thread([&] {
    std::vector<Bytes> recv;
    EXPECT_TRUE(nodes[1].comm.Gather(0, 0, {1}, &recv).ok());
  });
  std::vector<Bytes> recv;
  const Status status = nodes[0].comm.Gather(0, 0, {1}, &recv);
  EXPECT_TRUE(status.ok()) << status.message();
  thread.join();
  EXPECT_TRUE(Welcomed(b, Shows("a"), {"w", "a", "b"})) << "a itself comes again";
}

TEST(MeshTest, VerifiesPodOfMemberAgainstLayout) {
  const auto b = Listening("b");
  const std::vector<std::string> names{"a"};
  const auto a = Listening("a");
  const auto early = Listening("a");  // in the pod of c
  early->SetSelf("w", "a", Of("c"));
  early->Want(std::vector{At("b", *b)});
  EXPECT_TRUE(Soon({early.get(), b.get()}, [&] { return b->Connected(names); }));
  EXPECT_FALSE(Welcomed(*b, Shows("d"), {"w", "a", "b"}));
  EXPECT_TRUE(b->Connected(names));
  b->Want(std::vector{At("a", *a), At("b", *b)});
  EXPECT_FALSE(b->Connected(names)) << "c spoke for a";
  EXPECT_FALSE(Welcomed(*b, Shows("c"), {"w", "a", "b"}));
  a->Want(std::vector{At("a", *a), At("b", *b)});
  EXPECT_TRUE(Soon({a.get(), b.get()}, [&] { return b->Connected(names); })) << b->Missing(names);
}

// The other direction: the dialling side sends nothing to a pod that is not the member's.
TEST(MeshTest, VerifiesPodOfDialledMember) {
  const auto a = Listening("a"), impostor = Listening("b");
  impostor->SetSelf("w", "b", Of("c"));
  const std::vector<std::string> names{"b"};
  a->Want(std::vector{At("b", *impostor)});
  EXPECT_TRUE(Soon({a.get(), impostor.get()}, [&] {
    return a->Missing(names).find("pod pod-c presents member b") != std::string::npos;
  })) << a->Missing(names);
  EXPECT_FALSE(a->Connected(names));
}

TEST(MeshTest, AcceptsMembersDespiteIdleUnauthenticatedPeers) {
  // Some send nothing, some shake hands and then send nothing.
  const auto b = Listening("b", {.strangers = {.most = 32, .young = milliseconds(20)}});
  std::vector<std::unique_ptr<net::Stream>> strangers;
  for (int i = 0; i < 200; ++i) {
    auto fd = net::Dial("127.0.0.1:" + std::to_string(b->port()));
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    strangers.push_back(std::make_unique<net::Stream>(
        std::move(*fd), net::Side::kDialled, i % 2 == 0 ? net::Credentials::Insecure() : Of("c")));
    (void)strangers.back()->Handshake();
    b->Progress(0);
    for (const auto& stranger : strangers) (void)stranger->Handshake();
  }
  const auto a = Listening("a");
  const std::vector<std::string> names{"a", "b"};
  const std::vector<PeerAddress> peers{At("a", *a), At("b", *b)};
  a->Want(peers);
  b->Want(peers);
  EXPECT_TRUE(Soon({a.get(), b.get()}, [&] { return a->Connected(names) && b->Connected(names); }))
      << a->Missing(names);
}

// A pod that sends hellos for ever more unknown members.
TEST(MeshTest, LimitsUnexpectedMembers) {
  const auto a = Listening("a"), b = Listening("b", {.unexpected = 1});
  const std::vector<std::string> names{"a"};
  a->Want(std::vector{At("b", *b)});
  ASSERT_TRUE(Soon({a.get(), b.get()}, [&] { return b->Connected(names); }));
  EXPECT_FALSE(Welcomed(*b, Shows("c"), {"w", "a2", "b"}));
  b->Want(std::vector{At("a", *a)});
  EXPECT_TRUE(b->Connected(names));
  EXPECT_TRUE(Welcomed(*b, Shows("c"), {"w", "a2", "b"})) << "a is expected now";
  EXPECT_TRUE(Welcomed(*b, Shows("c"), {"w", "a3", "b"})) << "a2 is gone";
}

TEST(MeshTest, RejectsOversizedHello) {
  const auto b = Listening("b");
  auto fd = net::Dial("127.0.0.1:" + std::to_string(b->port()));
  net::Stream stream(std::move(fd).value(), net::Side::kDialled, Of("a"));
  Result<bool> known = false;
  ASSERT_TRUE(Soon({b.get()}, [&] { return !(known = stream.Handshake()).ok() || *known; }));
  FrameHeader header;
  header.kind = FrameKind::kHello;
  header.length = FrameHeader::kMaxHello + 1;
  ASSERT_TRUE(net::WriteAll(stream, std::as_bytes(std::span(&header, 1)), {}).ok());
  std::byte byte{};
  EXPECT_TRUE(Soon({b.get()}, [&] { return !stream.Read({&byte, 1}).ok(); })) << "was listened to";
}

TEST(MeshTest, AllowsPlaintextOnTrustedFabric) {
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<PeerAddress> peers;
  for (const std::string name : {"a", "b"}) {
    meshes.push_back(std::move(Mesh::Listen("127.0.0.1:0")).value());
    meshes.back()->SetSelf("w", name, net::Credentials::Insecure());
    peers.push_back(At(name, *meshes.back()));
  }
  for (const auto& mesh : meshes) mesh->Want(peers);
  const std::vector<std::string> names{"a", "b"};
  EXPECT_TRUE(Soon({meshes[0].get(), meshes[1].get()},
                   [&] { return meshes[0]->Connected(names) && meshes[1]->Connected(names); }));
}

}  // namespace
}  // namespace tangram::engine
