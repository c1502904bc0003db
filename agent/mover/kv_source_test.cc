// KV of another rank: ranges over a persistent connection, each reply checked against its hash.
#include "agent/mover/kv_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "agent/base/limits.h"
#include "agent/mover/testing.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

class KvSourceTest : public testing::MoverTest {
 protected:
  Result<v1::OpenPullResponse> Open(const v1::OpenPullRequest& request) {
    ++opened_;
    EXPECT_TRUE(request.kv());
    Grant grant;
    grant.kv = device::Memory::Own(source_);
    grant.pod = "pod-0";
    grant.lease = lease_;
    v1::OpenPullResponse out;
    out.set_token(grants_.Issue(std::move(grant)));
    return out;
  }
  KvLink Link(const std::string& member) {
    v1::PeerAddress peer;
    peer.set_member(member);
    peer.set_data(address_);
    return {[this](const std::string&, const auto& request, const auto&) { return Open(request); },
            transports_,
            {},
            peer};
  }
  // Random ranges of the source, each with a separate destination.
  std::vector<KvRange> Ranges(size_t count, unsigned seed) {
    std::vector<KvRange> out;
    copy_.assign(count * 64, std::byte{0});
    for (size_t i = 0; i < count; ++i) {
      out.push_back({(i * 7919 + seed * 104729) * 64 % (source_.size() - 64),
                     device::Memory::Own(std::span(copy_).subspan(i * 64, 64))});
    }
    return out;
  }
  void ExpectRead(const std::vector<KvRange>& ranges) {
    for (const KvRange& range : ranges) {
      ASSERT_TRUE(std::ranges::equal(device::View(range.to),
                                     std::span(source_).subspan(range.source_offset, 64)));
    }
  }
  // Fetches the ranges as a job, the first `first` over one connection, the rest over the other.
  Status BringFrom(KvLink* one, KvLink* other, size_t first, const std::vector<KvRange>& ranges) {
    std::vector<Range> job;
    KvOffsets offsets;
    for (const KvRange& range : ranges) {
      job.push_back({{range.to}, {job.size() < first ? 0U : 1U}});
      offsets.push_back({range.source_offset});
    }
    KvSource a(one, &offsets), b(other, &offsets);
    std::vector<Source*> sources{&a, &b};
    return Bring(
        job, sources, {}, [&](const Source&, size_t, const auto&) { ++came_; },
        [&](const Source&, const Status& status) { failures_.push_back(status.code()); }, {});
  }

  std::shared_ptr<Transports> transports_ = [this] {
    std::vector<std::unique_ptr<Transport>> all;
    all.push_back(std::make_unique<TcpTransport>(credentials_, testing::kPatientKv));
    return std::make_shared<Transports>(std::move(all));
  }();
  std::atomic<int> opened_{0};
  std::shared_ptr<Lease> lease_;
  std::atomic<size_t> came_{0};
  std::vector<Code> failures_;
};

TEST_F(KvSourceTest, ReusesConnectionForSeveralReads) {
  KvLink link = Link("a");
  for (unsigned round = 0; round < 3; ++round) {
    const auto ranges = Ranges(500, round);
    const Status read = link.Read(ranges, {});
    ASSERT_TRUE(read.ok()) << read.message();
    ExpectRead(ranges);
  }
  EXPECT_EQ(opened_, 1) << "a flip must not pay for handshakes";
}

// A run has a flip for each few layers: only the first one needs a handshake.
TEST_F(KvSourceTest, ReusesConnectionAcrossAttempts) {
  for (unsigned attempt = 0; attempt < 4; ++attempt) {
    lease_ = std::make_shared<Lease>();
    {
      KvLink link = Link("a");
      const auto ranges = Ranges(50, attempt);
      const Status read = link.Read(ranges, {});
      ASSERT_TRUE(read.ok()) << read.message();
      ExpectRead(ranges);
    }
    lease_->End();
    transports_->EndAttempt();
  }
  EXPECT_EQ(opened_, 4) << "each attempt has a token of its own";
  EXPECT_EQ(server_->welcomed(), 1U);
}

// After an invalid token the grant of the previous one must not be used.
TEST_F(KvSourceTest, ClosesReusedConnectionOnInvalidToken) {
  v1::PeerAddress peer;
  peer.set_data(address_);
  Transport& tcp = transports_->For(peer);
  for (const bool pieces : {false, true}) {
    v1::OpenPullRequest request;
    request.set_kv(true);
    const auto ranges = Ranges(3, 1);
    ASSERT_TRUE((*tcp.OpenKv(peer, Open(request)->token(), {}))->Read(ranges, false, {}).ok());
    const std::string wrong = pieces ? Issue({64}) : std::string(16, 'x');
    copy_.assign(copy_.size(), std::byte{0});
    EXPECT_EQ((*tcp.OpenKv(peer, wrong, {}))->Read(ranges, false, {}).code(), Code::kUnavailable);
    EXPECT_EQ(copy_, std::vector<std::byte>(copy_.size(), std::byte{0}));
  }
}

TEST_F(KvSourceTest, SplitsRangesOverSourcesAndRequests) {
  KvLink a = Link("a"), b = Link("b");
  const auto ranges = Ranges(kMostRanges + 1000, 5);
  const Status brought = BringFrom(&a, &b, 300, ranges);
  ASSERT_TRUE(brought.ok()) << brought.message();
  ExpectRead(ranges);
  EXPECT_EQ(came_, ranges.size());
  EXPECT_EQ(opened_, 2);
}

TEST_F(KvSourceTest, RejectsRangesOutsideRegion) {
  for (const uint64_t offset :
       {uint64_t{source_.size() - 63}, uint64_t{source_.size()}, ~uint64_t{0}, ~uint64_t{0} - 63}) {
    KvLink link = Link("a");
    copy_.assign(64, std::byte{0});
    const KvRange range{offset, device::Memory::Own(copy_)};
    EXPECT_EQ(link.Read({&range, 1}, {}).code(), Code::kUnavailable) << offset;
    EXPECT_EQ(copy_, std::vector<std::byte>(64, std::byte{0}));
  }
}

TEST_F(KvSourceTest, SplitsRangesAboveMaxRangeBytes) {
  source_ = testing::Pattern((kMostRangeBytes * 5) / 2, 3);
  copy_.assign(source_.size(), std::byte{0});
  KvLink link = Link("a");
  const KvRange whole{0, device::Memory::Own(copy_)};
  EXPECT_EQ(link.Read({&whole, 1}, {}).code(), Code::kUnavailable) << "refused";
  const Status brought = BringFrom(&link, &link, 1, {whole});
  ASSERT_TRUE(brought.ok()) << brought.message();
  EXPECT_TRUE(copy_ == source_);
  EXPECT_EQ(came_, 1U);
}

// 65,536 ranges of 16 MiB, all overlapping: a stolen pod requests a terabyte, and reads none of it.
// Others still get replies, and the lease ends immediately.
TEST_F(KvSourceTest, ServesOthersDuringExcessiveRequests) {
  source_ = testing::Pattern(kMostRangeBytes, 3);
  lease_ = std::make_shared<Lease>();
  std::vector<std::unique_ptr<net::Stream>> greedy;
  for (size_t i = 0; i < 2 * DataServer::Options().kv_senders; ++i) {
    const auto opened = Open([] {
      v1::OpenPullRequest request;
      request.set_kv(true);
      return request;
    }());
    auto stream = net::Connect(address_, credentials_, {});
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    ASSERT_TRUE(net::WriteAll(**stream, std::as_bytes(std::span(opened->token())), {}).ok());
    std::vector<uint32_t> words(1 + size_t{3} * kMostRanges);  // {u64 0, u32 length} each
    words[0] = kMostRanges;
    for (size_t range = 0; range < kMostRanges; ++range) words[3 + 3 * range] = kMostRangeBytes;
    ASSERT_TRUE(net::WriteAll(**stream, std::as_bytes(std::span(words)), {}).ok());
    greedy.push_back(std::move(stream).value());
  }
  KvLink link = Link("a");
  for (unsigned round = 0; round < 3; ++round) {
    const auto ranges = Ranges(100, round);
    const Status read = link.Read(ranges, {});
    ASSERT_TRUE(read.ok()) << read.message();
    ExpectRead(ranges);
  }
  lease_->End();
}

// Between Stage and the flip a connection may rest for longer than the source keeps it. The flip
// must not fail because of that.
TEST_F(KvSourceTest, ReconnectsWhenSourceClosedConnection) {
  KvLink link = Link("a");
  ASSERT_TRUE(link.Read(Ranges(1, 8), {}).ok());
  const std::string listen = address_;
  server_.reset();  // closes it, as the rest limit would
  Start(listen);
  const auto ranges = Ranges(100, 9);
  const Status read = link.Read(ranges, {});
  ASSERT_TRUE(read.ok()) << read.message();
  ExpectRead(ranges);
  EXPECT_EQ(opened_, 2);
}

TEST_F(KvSourceTest, RetriesFailedOrCorruptRead) {
  for (const auto& [fault, code] : {std::pair{"kv.before_pull=error", Code::kUnavailable},
                                    std::pair{"kv.before_pull=corrupt", Code::kCorrupt}}) {
    failures_.clear();
    came_ = 0;
    KvLink a = Link("a"), b = Link("b");
    const auto ranges = Ranges(40, 3);
    ASSERT_TRUE(fault::Arm(fault).ok());
    const Status brought = BringFrom(&a, &b, 20, ranges);
    ASSERT_TRUE(brought.ok()) << brought.message();
    EXPECT_EQ(failures_, std::vector<Code>{code}) << fault;
    EXPECT_EQ(came_, ranges.size());
    ExpectRead(ranges);
  }
}

TEST_F(KvSourceTest, RejectsReadAfterLeaseEnd) {
  lease_ = std::make_shared<Lease>();
  KvLink link = Link("a");
  EXPECT_TRUE(link.Read(Ranges(3, 1), {}).ok());
  lease_->End();
  EXPECT_EQ(link.Read(Ranges(3, 1), {}).code(), Code::kUnavailable);
}

// A flip waits for it, so the timeout is that of KV (base/limits.h).
TEST(KvSourceRealTime, TimesOutUnresponsiveSource) {
  const auto silent = net::Listen("127.0.0.1:0");  // the kernel connects; no process accepts
  ASSERT_TRUE(silent.ok());
  v1::PeerAddress peer;
  peer.set_data("127.0.0.1:" + std::to_string(*net::PortOf(silent->get())));
  TcpTransport tcp(net::Credentials::Insecure());
  auto kv = tcp.OpenKv(peer, "a token", {});
  ASSERT_TRUE(kv.ok()) << kv.status().message();
  std::vector<std::byte> copy(64);
  const std::vector<KvRange> ranges{{0, device::Memory::Own(copy)}};
  const auto begun = std::chrono::steady_clock::now();
  const Status status = (*kv)->Read(ranges, false, {});
  const auto took = std::chrono::steady_clock::now() - begun;
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
  EXPECT_GE(took, limits::kKvSilence);
  EXPECT_LT(took, limits::kDataSilence);
}

}  // namespace
}  // namespace tangram::mover
