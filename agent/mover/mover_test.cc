// The bulk connection between agents: what a token opens, and that nothing else does.
#include <gtest/gtest.h>
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
#include "agent/mover/puller.h"
#include "agent/net/blocking.h"
#include "agent/net/testing/certs.h"
#include "agent/net/testing/thief.h"

namespace tangram::mover {
namespace {

std::vector<std::byte> Pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = std::byte((i * 31 + seed * 7 + i / 251) & 0xff);
  return out;
}

class MoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::default_logger();  // before there are threads: TSan does not see into the library
    Start("127.0.0.1:0");
  }
  void TearDown() override {
    server_.reset();  // it may still send from source_, which is a member and goes first
    ASSERT_TRUE(fault::Arm("").ok());
  }
  void Start(const std::string& listen) {
    auto server = DataServer::Start({.listen = listen, .credentials = credentials_}, &grants_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  // Grants pod-0 `source_` in spans of the given sizes; targets are `units` of equal size.
  std::string Issue(const std::vector<size_t>& spans, const std::string& pod = "pod-0") {
    Grant grant;
    grant.pod = pod;
    size_t at = 0;
    for (const size_t bytes : spans) {
      grant.pieces.push_back(device::Memory::Own(std::span(source_).subspan(at, bytes)));
      at += bytes;
    }
    return grants_.Issue(std::move(grant));
  }
  std::vector<Target> Targets(size_t units) {
    std::vector<Target> out;
    const size_t unit = source_.size() / units;
    copy_.assign(source_.size(), std::byte{0});
    for (size_t i = 0; i < units; ++i) {
      out.push_back({device::Memory::Own(std::span(copy_).subspan(i * unit, unit)),
                     device::HashOf(std::span(source_).subspan(i * unit, unit))});
    }
    return out;
  }
  Status Pull(const std::string& token, const std::vector<Target>& targets,
              std::stop_token stop = {}) {
    pulled_ = 0;
    return PullPieces(credentials_, address_, token, targets, std::move(stop),
                      [&](uint64_t bytes) { pulled_ += bytes; });
  }

  net::testing::TestCa ca_;
  std::shared_ptr<net::Credentials> credentials_ = ca_.Open("w", "agent", "pod-0");
  std::shared_ptr<net::Credentials> impostor_;
  Grants grants_;
  std::unique_ptr<DataServer> server_;
  std::string address_;
  std::vector<std::byte> source_ = Pattern(6 << 20, 1), copy_;
  uint64_t pulled_ = 0;
};

TEST_F(MoverTest, BringsEveryByteInOrder) {
  // Spans of the source and units of the target are cut differently; more spans than one
  // sendmsg takes.
  std::vector<size_t> spans(3000, 1024);
  spans.push_back(source_.size() - std::accumulate(spans.begin(), spans.end(), size_t{0}));
  const Status pulled = Pull(Issue(spans), Targets(96));
  ASSERT_TRUE(pulled.ok()) << pulled.message();
  EXPECT_EQ(copy_, source_);
  EXPECT_EQ(pulled_, source_.size());
}

TEST_F(MoverTest, ATokenIsGoodOnce) {
  const std::string token = Issue({source_.size()});
  ASSERT_TRUE(Pull(token, Targets(4)).ok());
  const auto again = Targets(4);
  EXPECT_EQ(Pull(token, again).code(), Code::kUnavailable);
  EXPECT_EQ(pulled_, 0U);
  EXPECT_EQ(copy_, std::vector<std::byte>(copy_.size(), std::byte{0})) << "bytes came all the same";
}

TEST_F(MoverTest, AGuessedTokenOpensNothingAndCostsNothing) {
  const std::string token = Issue({source_.size()});
  std::string guess = token;
  guess[15] = static_cast<char>(guess[15] ^ 1);
  EXPECT_EQ(Pull(guess, Targets(4)).code(), Code::kUnavailable);
  EXPECT_EQ(Pull(std::string(16, '\0'), Targets(4)).code(), Code::kUnavailable);
  EXPECT_TRUE(Pull(token, Targets(4)).ok()) << "the real one is still good";
}

TEST_F(MoverTest, TokensAreRandomAndRevokedByOwner) {
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

TEST_F(MoverTest, ACorruptedByteIsFoundAndNamed) {
  ASSERT_TRUE(fault::Arm("stage.after_fetch=corrupt@3").ok());
  const Status pulled = Pull(Issue({source_.size()}), Targets(8));
  EXPECT_EQ(pulled.code(), Code::kCorrupt) << pulled.message();
  EXPECT_NE(pulled.message().find("unit 2 of 8"), std::string::npos) << pulled.message();
  EXPECT_EQ(pulled_, source_.size() / 8 * 2) << "only verified bytes count";
}

TEST_F(MoverTest, AByteThatTheSourceCorruptsIsFound) {
  ASSERT_TRUE(fault::Arm("data.before_send=corrupt").ok());
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kCorrupt);
  EXPECT_TRUE(Pull(Issue({source_.size()}), Targets(8)).ok()) << "what it holds is sound";
}

TEST_F(MoverTest, ASourceThatHangsUpIsUnavailable) {
  ASSERT_TRUE(fault::Arm("data.before_send=error").ok());
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kUnavailable);
}

TEST_F(MoverTest, AChangedSourceIsFound) {
  const auto targets = Targets(8);
  source_[source_.size() - 1] ^= std::byte{0x80};
  EXPECT_EQ(Pull(Issue({source_.size()}), targets).code(), Code::kCorrupt);
}

TEST_F(MoverTest, ASourceThatEndsEarlyIsNoSuccess) {
  EXPECT_EQ(Pull(Issue({source_.size() - 1}), Targets(8)).code(), Code::kUnavailable);
  server_.reset();
  EXPECT_EQ(Pull(Issue({source_.size()}), Targets(8)).code(), Code::kUnavailable);
}

TEST_F(MoverTest, AStopEndsAPullThatWaits) {
  // A listener that takes the connection and never says a word.
  auto silent = net::Listen("127.0.0.1:0");
  ASSERT_TRUE(silent.ok());
  address_ = "127.0.0.1:" + std::to_string(*net::PortOf(silent->get()));
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(Pull(std::string(16, 'x'), Targets(2), stop.get_token()).code(), Code::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
}

TEST_F(MoverTest, ManyPullersAtOnce) {
  std::vector<std::jthread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    const std::string token = Issue({source_.size()});
    threads.emplace_back([&, token] {
      std::vector<std::byte> copy(source_.size());
      const std::vector<Target> target = {{device::Memory::Own(copy), device::HashOf(source_)}};
      if (PullPieces(credentials_, address_, token, target, {}, [](uint64_t) {}).ok() &&
          copy == source_)
        ++good;
    });
  }
  threads.clear();
  EXPECT_EQ(good, 8);
}

// --- Strangers --------------------------------------------------------------------------

size_t Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(MoverTest, IdleStrangersCostNoThreadsAndHoldUpNobody) {
  const size_t before = Threads();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 600; ++i) {
    auto fd = net::Dial(address_);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    strangers.push_back(std::move(fd).value());
  }
  // Behind more of them than may knock at once.
  const Status pulled = Pull(Issue({source_.size()}), Targets(4));
  ASSERT_TRUE(pulled.ok()) << pulled.message();
  EXPECT_EQ(copy_, source_);
  EXPECT_EQ(Threads(), before);
}

// They have a good token, and believe everything themselves.
TEST_F(MoverTest, WhoIsNoAgentOfThisWorldGetsNothing) {
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

// Nor does an agent of this world with a token that was given to another.
TEST_F(MoverTest, ATokenIsGoodForThePodThatAskedOnly) {
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

// The other way: an agent that is led to a stranger tells it no token.
TEST_F(MoverTest, ATokenIsShownToAgentsOfThisWorldOnly) {
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

TEST_F(MoverTest, OnATrustedFabricBothSidesMaySpeakPlainly) {
  server_.reset();
  credentials_ = net::Credentials::Insecure();
  Start("127.0.0.1:0");
  ASSERT_TRUE(Pull(Issue({source_.size()}), Targets(4)).ok());
  EXPECT_EQ(copy_, source_);
}

// --- KV ---------------------------------------------------------------------------------

class KvTest : public MoverTest {
 protected:
  Result<v1::OpenPullResponse> Open(const v1::OpenPullRequest& request) {
    ++opened_;
    EXPECT_TRUE(request.kv());
    Grant grant;
    grant.kv = device::Memory::Own(source_);
    grant.pod = "pod-0";
    v1::OpenPullResponse out;
    out.set_token(grants_.Issue(std::move(grant)));
    return out;
  }
  v1::PeerAddress Peer(const std::string& member) const {
    v1::PeerAddress peer;
    peer.set_member(member);
    peer.set_data(address_);
    return peer;
  }
  KvReaders MakeReaders() {
    return KvReaders([this](const std::string&, const auto& request) { return Open(request); },
                     credentials_);
  }
  // Random ranges of the source, read to a place of their own each.
  std::vector<KvReaders::Range> Ranges(size_t count, unsigned seed) {
    std::vector<KvReaders::Range> out;
    copy_.assign(count * 64, std::byte{0});
    for (size_t i = 0; i < count; ++i) {
      out.push_back({(i * 7919 + seed * 104729) * 64 % (source_.size() - 64),
                     device::Memory::Own(std::span(copy_).subspan(i * 64, 64))});
    }
    return out;
  }
  void ExpectRead(const std::vector<KvReaders::Range>& ranges) {
    for (const KvReaders::Range& range : ranges) {
      ASSERT_TRUE(std::ranges::equal(device::View(range.to),
                                     std::span(source_).subspan(range.source_offset, 64)));
    }
  }
  int opened_ = 0;
};

TEST_F(KvTest, ReadsRangesOverOneConnectionThatStays) {
  KvReaders readers = MakeReaders();
  ASSERT_TRUE(readers.Warm({}, Peer("a")).ok());
  for (unsigned round = 0; round < 3; ++round) {
    const auto ranges = Ranges(500, round);
    const auto read = readers.Read({}, {{Peer("a"), ranges}});
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(*read, 500U * 64);
    ExpectRead(ranges);
  }
  EXPECT_EQ(opened_, 1) << "a flip must not pay for handshakes";
}

TEST_F(KvTest, SeveralSourcesAndMoreRangesThanOneRequestTakes) {
  KvReaders readers = MakeReaders();
  const auto ranges = Ranges(kMostRanges + 1000, 5);
  const std::vector<KvReaders::Range> first(ranges.begin(), ranges.begin() + 300);
  const std::vector<KvReaders::Range> rest(ranges.begin() + 300, ranges.end());
  const auto read = readers.Read({}, {{Peer("a"), first}, {Peer("b"), rest}});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, ranges.size() * 64);
  ExpectRead(ranges);
  EXPECT_EQ(opened_, 2);
}

TEST_F(KvTest, RangesOutsideTheRegionAreRefused) {
  for (const uint64_t offset :
       {uint64_t{source_.size() - 63}, uint64_t{source_.size()}, ~uint64_t{0}, ~uint64_t{0} - 63}) {
    KvReaders readers = MakeReaders();
    copy_.assign(64, std::byte{0});
    const auto read = readers.Read({}, {{Peer("a"), {{offset, device::Memory::Own(copy_)}}}});
    EXPECT_EQ(read.status().code(), Code::kUnavailable) << offset;
    EXPECT_EQ(copy_, std::vector<std::byte>(64, std::byte{0}));
  }
}

// Between Stage and the flip a connection may be silent for longer than the source keeps it.
// The flip must not fail for it.
TEST_F(KvTest, AConnectionThatTheSourceClosedIsOpenedAgain) {
  KvReaders readers = MakeReaders();
  ASSERT_TRUE(readers.Warm({}, Peer("a")).ok());
  const std::string listen = address_;
  server_.reset();  // closes it, as the silence limit would
  Start(listen);
  const auto ranges = Ranges(100, 9);
  const auto read = readers.Read({}, {{Peer("a"), ranges}});
  ASSERT_TRUE(read.ok()) << read.status().message();
  ExpectRead(ranges);
  EXPECT_EQ(opened_, 2);
}

TEST_F(KvTest, AFaultBeforeThePullFailsIt) {
  ASSERT_TRUE(fault::Arm("kv.before_pull=error").ok());
  KvReaders readers = MakeReaders();
  EXPECT_FALSE(readers.Read({}, {{Peer("a"), Ranges(1, 1)}}).ok());
  EXPECT_TRUE(readers.Read({}, {{Peer("a"), Ranges(1, 1)}}).ok());
}

}  // namespace
}  // namespace tangram::mover
