// The bulk connection between agents: a token grants its memory, and nothing else does.
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "agent/base/fault.h"
#include "agent/device/hash.h"
#include "agent/mover/data_server.h"
#include "agent/mover/grants.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/testing.h"
#include "agent/net/blocking.h"
#include "agent/net/testing/certs.h"
#include "agent/net/testing/thief.h"

namespace tangram::mover {
namespace {

using testing::MoverTest;
using testing::Pattern;

TEST_F(MoverTest, FetchesEveryByteInOrder) {
  // Spans of the source and units of the target are cut differently; more spans than one sendmsg
  // takes.
  std::vector<size_t> spans(3000, 1024);
  spans.push_back(source_.size() - std::accumulate(spans.begin(), spans.end(), size_t{0}));
  const Status pulled = Pull(Issue(spans), Targets(96));
  ASSERT_TRUE(pulled.ok()) << pulled.message();
  EXPECT_EQ(copy_, source_);
  EXPECT_EQ(pulled_, source_.size());
}

TEST_F(MoverTest, ReusesConnectionAcrossTokens) {
  PieceLink link(credentials_, address_);
  for (int round = 0; round < 5; ++round) {
    const auto targets = Targets(16);
    const Status pulled = link.Pull(Issue({source_.size()}), targets, {}, [](uint64_t) {});
    ASSERT_TRUE(pulled.ok()) << pulled.message();
    ASSERT_TRUE(copy_ == source_);
  }
  EXPECT_EQ(server_->welcomed(), 1U);
  // An invalid token ends the connection, and the next pull opens another.
  EXPECT_FALSE(link.Pull(std::string(16, 'x'), Targets(16), {}, [](uint64_t) {}).ok());
  EXPECT_TRUE(link.Pull(Issue({source_.size()}), Targets(16), {}, [](uint64_t) {}).ok());
  EXPECT_EQ(server_->welcomed(), 2U);
}

TEST_F(MoverTest, ReusesConnectionAcrossAttempts) {
  TcpTransport links(credentials_);
  v1::PeerAddress peer;
  peer.set_data(address_);
  const auto pull = [&] {
    const Status pulled =
        links.Pull(peer, Issue({source_.size()}), Targets(16), {}, [](uint64_t) {});
    EXPECT_TRUE(pulled.ok()) << pulled.message();
    EXPECT_TRUE(copy_ == source_);
  };
  pull();
  links.EndAttempt();
  pull();
  EXPECT_EQ(server_->welcomed(), 1U);
  // After the source closed the connection, the next pull connects again.
  server_.reset();
  Start(address_);
  links.EndAttempt();
  pull();
  EXPECT_EQ(server_->welcomed(), 1U);
}

TEST_F(MoverTest, SourceClosesIdleConnection) {
  server_.reset();
  rest_ = std::chrono::milliseconds(1);
  Start("127.0.0.1:0");
  PieceLink link(credentials_, address_);
  ASSERT_TRUE(link.Pull(Issue({source_.size()}), Targets(16), {}, [](uint64_t) {}).ok());
  EXPECT_TRUE(tangram::testing::Eventually([&] { return link.Gone(); }));
}

TEST_F(MoverTest, SharesConnectionsWithoutConcurrentUse) {
  TcpTransport links(credentials_);
  v1::PeerAddress peer;
  peer.set_data(address_);
  std::vector<std::string> tokens;
  for (int i = 0; i < 12; ++i) tokens.push_back(Issue({size_t{1} << 20}));
  std::vector<std::thread> ranks;
  std::atomic<int> right{0};
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int i = rank; i < 12; i += 3) {
        std::vector<std::byte> copy(1 << 20);
        const Target target{device::Memory::Own(copy),
                            device::HashOf(std::span(source_).first(copy.size()))};
        if (!links.Pull(peer, tokens[static_cast<size_t>(i)], {&target, 1}, {}, [](auto) {}).ok())
          continue;
        right += std::equal(copy.begin(), copy.end(), source_.begin()) ? 1 : 0;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(right, 12);
  EXPECT_LE(server_->welcomed(), 3U) << "as many as pulled at the same time";
  links.EndAttempt();
  const Target none{};
  EXPECT_TRUE(links.Pull(peer, Issue({}), {&none, 0}, {}, [](auto) {}).ok());
  EXPECT_LE(server_->welcomed(), 4U);
}

TEST_F(MoverTest, AcceptsTokenOnce) {
  const std::string token = Issue({source_.size()});
  ASSERT_TRUE(Pull(token, Targets(4)).ok());
  const auto again = Targets(4);
  EXPECT_EQ(Pull(token, again).code(), Code::kUnavailable);
  EXPECT_EQ(pulled_, 0U);
  EXPECT_EQ(copy_, std::vector<std::byte>(copy_.size(), std::byte{0})) << "bytes came all the same";
}

TEST_F(MoverTest, RejectsGuessedTokenAndKeepsRealTokenValid) {
  const std::string token = Issue({source_.size()});
  std::string guess = token;
  guess[15] = static_cast<char>(guess[15] ^ 1);
  EXPECT_EQ(Pull(guess, Targets(4)).code(), Code::kUnavailable);
  EXPECT_EQ(Pull(std::string(16, '\0'), Targets(4)).code(), Code::kUnavailable);
  EXPECT_TRUE(Pull(token, Targets(4)).ok()) << "the real one is still good";
}

TEST_F(MoverTest, IssuesRandomTokensAndRevokesThemByOwner) {
  std::set<std::string> seen;
  int mine = 0, theirs = 0;
  for (int i = 0; i < 200; ++i) {
    Grant grant;
    grant.owner = i % 2 == 0 ? &mine : &theirs;
    grant.pod = "pod-0";
    const std::string token = grants_.Issue(std::move(grant));
    EXPECT_EQ(token.size(), 16U);
    EXPECT_TRUE(seen.insert(token).second);
  }
  grants_.Revoke(&mine);
  EXPECT_EQ(grants_.open(), 100U);
  EXPECT_EQ(
      static_cast<int>(std::count_if(seen.begin(), seen.end(),
                                     [&](const auto& t) { return grants_.Redeem(t, "pod-0"); })),
      100);
}

TEST_F(MoverTest, DetectsAndNamesCorruptUnit) {
  ASSERT_TRUE(fault::Arm("stage.after_fetch=corrupt@3").ok());
  const Status pulled = Pull(Issue({source_.size()}), Targets(8));
  EXPECT_EQ(pulled.code(), Code::kCorrupt) << pulled.message();
  EXPECT_NE(pulled.message().find("unit 2 of 8"), std::string::npos) << pulled.message();
  EXPECT_EQ(pulled_, source_.size() / 8 * 2) << "only verified bytes count";
}

TEST_F(MoverTest, DetectsCorruptionDuringSend) {
  ASSERT_TRUE(fault::Arm("data.before_send=corrupt").ok());
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kCorrupt);
  EXPECT_TRUE(Pull(Issue({source_.size()}), Targets(8)).ok()) << "what it holds is sound";
}

TEST_F(MoverTest, ReportsUnavailableWhenSourceDisconnects) {
  ASSERT_TRUE(fault::Arm("data.before_send=error").ok());
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kUnavailable);
}

TEST_F(MoverTest, DetectsChangedSource) {
  const auto targets = Targets(8);
  source_[source_.size() - 1] ^= std::byte{0x80};
  EXPECT_EQ(Pull(Issue({source_.size()}), targets).code(), Code::kCorrupt);
}

TEST_F(MoverTest, FailsWhenSourceEndsEarly) {
  // Makes the server close resting connections before the silence timeout.
  server_.reset();
  rest_ = std::chrono::milliseconds(1);
  Start(port_.address());
  EXPECT_EQ(Pull(Issue({source_.size() - 1}), Targets(8)).code(), Code::kUnavailable);
  EXPECT_EQ(pulled_, source_.size() / 8 * 7);
  server_.reset();
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kUnavailable);
}

TEST_F(MoverTest, StopsWaitingPull) {
  // A listener that accepts the connection and never sends a byte.
  auto silent = net::Listen("127.0.0.1:0");
  ASSERT_TRUE(silent.ok());
  address_ = "127.0.0.1:" + std::to_string(*net::PortOf(silent->get()));
  std::stop_source stop;
  std::jthread stopper([&] {
    pollfd knock{silent->get(), POLLIN, 0};
    EXPECT_EQ(poll(&knock, 1, tangram::testing::kHangMs), 1);
    stop.request_stop();
  });
  const Status pulled = Pull(std::string(16, 'x'), Targets(2), stop.get_token());
  EXPECT_EQ(pulled.code(), Code::kUnavailable);
  EXPECT_NE(pulled.message().find("stopped"), std::string::npos) << pulled.message();
}

TEST_F(MoverTest, ServesConcurrentPulls) {
  std::vector<std::jthread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    const std::string token = Issue({source_.size()});
    threads.emplace_back([&, token] {
      std::vector<std::byte> copy(source_.size());
      const std::vector<Target> target = {{device::Memory::Own(copy), device::HashOf(source_)}};
      if (PieceLink(credentials_, address_).Pull(token, target, {}, [](uint64_t) {}).ok() &&
          copy == source_)
        ++good;
    });
  }
  threads.clear();
  EXPECT_EQ(good, 8);
}

// --- Unauthenticated peers --------------------------------------------------------------

size_t Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(MoverTest, HandlesIdleUnauthenticatedPeersWithoutThreads) {
  const size_t before = Threads();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 600; ++i) {
    auto fd = net::Dial(address_);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    strangers.push_back(std::move(fd).value());
  }
  // Queued after more of them than the server holds concurrently.
  const Status pulled = Pull(Issue({source_.size()}), Targets(4));
  ASSERT_TRUE(pulled.ok()) << pulled.message();
  EXPECT_EQ(copy_, source_);
  EXPECT_EQ(Threads(), before);
}

// They have a valid token, and trust any server.
TEST_F(MoverTest, RejectsPeersOtherThanAgentsOfWorld) {
  const net::testing::TestCa other;
  const std::string token = Issue({source_.size()}, "pod-1");
  const auto gets = [&](const std::optional<net::TlsTexts>& shows) {
    return net::testing::Steal(address_, shows, token, 16);
  };
  EXPECT_EQ(gets({}), "") << "no certificate";
  EXPECT_EQ(gets(other.Issue("spiffe://tangram/w/agent/pod-1")), "") << "another authority";
  EXPECT_EQ(gets(ca_.Issue("spiffe://tangram/v/agent/pod-1")), "") << "another world";
  EXPECT_EQ(gets(ca_.Issue("spiffe://tangram/w/engine/pod-1")), "") << "an engine";
  auto plain = net::Connect(address_, net::Credentials::Insecure(), {});
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  ASSERT_TRUE(net::WriteAll(**plain, std::as_bytes(std::span(token)), {}).ok());
  std::vector<std::byte> answer(16);
  EXPECT_FALSE(net::ReadAll(**plain, answer, {}).ok()) << "plain TCP: an alert of TLS at most";
  EXPECT_EQ(grants_.open(), 1U) << "the token was looked at";
  const std::string good = gets(ca_.Issue("spiffe://tangram/w/agent/pod-1"));
  EXPECT_EQ(good, std::string(reinterpret_cast<const char*>(source_.data()), 16)) << "an agent";
}

// An agent of this world is rejected too if the token was issued to another.
TEST_F(MoverTest, AcceptsTokenOnlyFromRequestingPod) {
  const std::string token = Issue({source_.size()}, "pod-1");
  const auto gets = [&](const std::string& pod) {
    return net::testing::Steal(address_, ca_.Issue("spiffe://tangram/w/agent/" + pod), token, 16);
  };
  EXPECT_EQ(gets("pod-2"), "");
  EXPECT_EQ(gets("pod-10"), "");
  EXPECT_EQ(grants_.open(), 1U) << "it stays good for pod-1";
  EXPECT_EQ(gets("pod-1"), std::string(reinterpret_cast<const char*>(source_.data()), 16));
  const std::string within = Issue({source_.size()}, "");
  EXPECT_EQ(Pull(within, Targets(4)).code(), Code::kUnavailable) << "of a rank of this process";
}

// The reverse: an agent that connects to an impostor does not send it the token.
TEST_F(MoverTest, SendsTokenOnlyToAgentsOfWorld) {
  const net::testing::TestCa other;
  server_.reset();
  credentials_.swap(impostor_ = other.Open("w", "agent", "pod-0"));
  Start("127.0.0.1:0");
  credentials_.swap(impostor_);
  const std::string token = Issue({source_.size()});
  const Status pulled = Pull(token, Targets(4));
  EXPECT_EQ(pulled.code(), Code::kUnauthenticated) << pulled.message();
  EXPECT_EQ(grants_.open(), 1U);
}

TEST_F(MoverTest, AllowsPlaintextOnTrustedFabric) {
  server_.reset();
  credentials_ = net::Credentials::Insecure();
  Start("127.0.0.1:0");
  ASSERT_TRUE(Pull(Issue({source_.size()}), Targets(4)).ok());
  EXPECT_EQ(copy_, source_);
}

// --- KV ---------------------------------------------------------------------------------

}  // namespace
}  // namespace tangram::mover
