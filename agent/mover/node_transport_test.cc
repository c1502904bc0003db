// Memory of agents of the same node: who gets it, what is read, and which errors are detected.
#include "agent/mover/node_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "agent/base/fault.h"
#include "agent/device/hash.h"
#include "agent/mover/kv_source.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/testing.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPage = 4096, kUnit = 10'000, kUnits = 40;

// An agent with memory, and the reads of another agent of its node. The parameter: bytes per
// descriptor, as PlatformOptions::descriptor_bytes.
class NodeTransportTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    spdlog::default_logger();  // before there are threads
    fs::create_directory(folder_);
    platform_ = device::MakePlatform({.descriptor_bytes = GetParam()}).value();
    owned_ = platform_->Make("source", {.weights = 128 * kPage, .kv = 64 * kPage, .control = kPage})
                 .value();
    for (device::Device* device : {owned_.weights.get(), owned_.kv.get()}) {
      auto [space, mapping] = device::MapWhole(*device).value();
      memory_.push_back({device, space->address(), device->total_bytes()});
      mappings_.push_back(std::move(mapping));
      std::ranges::copy(testing::Pattern(memory_.back().bytes, unsigned(memory_.size())),
                        device::View(memory_.back()).begin());
      windows_.push_back(Window::Of(*device).value());
    }
    StartServer();
    transports_ = Both(folder_, credentials_);
  }
  void TearDown() override {
    transports_->EndAttempt();
    server_.reset();
    ASSERT_TRUE(fault::Arm("").ok());
    fs::remove_all(folder_);
  }

  void StartServer() {
    auto server = DataServer::Start({.listen = port_.address(),
                                     .node_socket_dir = folder_,
                                     .advertise = "127.0.0.1",
                                     .credentials = credentials_},
                                    &grants_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    peer_.set_data("127.0.0.1:" + std::to_string(server_->port()));
    peer_.set_member("source");
  }
  std::shared_ptr<Transports> Both(const std::string& folder,
                                   const std::shared_ptr<net::Credentials>& credentials) const {
    std::vector<std::unique_ptr<Transport>> all;
    all.push_back(
        std::make_unique<NodeTransport>(folder, credentials, platform_, testing::kPatientKv));
    all.push_back(std::make_unique<TcpTransport>(credentials, testing::kPatientKv));
    return std::make_shared<Transports>(std::move(all));
  }
  fs::path Socket() const { return folder_ / (peer_.data() + ".sock"); }
  Transport& node() { return transports_->For(peer_); }

  // Units of the weights, scattered, and cut differently from the targets.
  std::string Issue(const std::string& pod = "pod-0") {
    Grant grant;
    grant.pod = pod;
    grant.lease = lease_;
    Shown shown{windows_[0], {}};
    order_.clear();
    for (uint64_t u = 0; u < kUnits; ++u) {
      const uint64_t offset = (u * 7 % kUnits) * (kUnit + 100);
      order_.push_back(offset);
      grant.pieces.push_back(memory_[0].Part(offset, kUnit));
      shown.extents.push_back({offset, u % 3 == 0 ? kUnit : 4000});
      if (u % 3 != 0) shown.extents.push_back({offset + 4000, kUnit - 4000});
    }
    grant.shown = std::move(shown);
    return grants_.Issue(std::move(grant));
  }
  std::vector<Target> Targets() {
    copy_.assign(kUnit * kUnits, std::byte{0});
    std::vector<Target> out;
    for (uint64_t u = 0; u < kUnits; ++u) {
      const auto from = device::View(memory_[0]).subspan((u * 7 % kUnits) * (kUnit + 100), kUnit);
      out.push_back(
          {device::Memory::Own(std::span(copy_).subspan(u * kUnit, kUnit)), device::HashOf(from)});
    }
    return out;
  }
  Status Pull(Transport& transport, const std::string& token, const std::vector<Target>& targets) {
    pulled_ = 0;
    return transport.Pull(peer_, token, targets, {}, [&](uint64_t bytes) { pulled_ += bytes; });
  }
  void ExpectPulled() const {
    for (uint64_t u = 0; u < kUnits; ++u) {
      const auto from = device::View(memory_[0]).subspan((u * 7 % kUnits) * (kUnit + 100), kUnit);
      ASSERT_TRUE(std::ranges::equal(std::span(copy_).subspan(u * kUnit, kUnit), from)) << u;
    }
    EXPECT_EQ(pulled_, kUnit * kUnits);
  }

  KvLink Kv() {
    return {[this](const std::string&, const v1::OpenPullRequest& request,
                   const std::stop_token&) -> Result<v1::OpenPullResponse> {
              by_descriptor_ += request.by_descriptor() ? 1 : 0;
              ++opened_;
              Grant grant;
              grant.kv = memory_[1];
              grant.pod = "pod-0";
              grant.lease = lease_;
              if (request.by_descriptor()) {
                grant.shown = Shown{windows_[1], {{0, memory_[1].bytes}}};
              }
              v1::OpenPullResponse out;
              out.set_token(grants_.Issue(std::move(grant)));
              return out;
            },
            transports_,
            {},
            peer_};
  }
  std::vector<KvRange> KvRanges() {
    copy_.assign(500 * 64, std::byte{0});
    std::vector<KvRange> out;
    for (uint64_t i = 0; i < 500; ++i) {
      out.push_back({i * 7919 * 64 % (memory_[1].bytes - 64),
                     device::Memory::Own(std::span(copy_).subspan(i * 64, 64))});
    }
    return out;
  }

  const testing::HeldPort port_;
  net::testing::TestCa ca_;
  std::shared_ptr<net::Credentials> credentials_ = ca_.Open("w", "agent", "pod-0");
  const fs::path folder_ = fs::temp_directory_path() / ("tangram-node-" + std::to_string(getpid()));
  std::shared_ptr<const device::Platform> platform_;
  device::RankDevices owned_;
  std::vector<device::Memory> memory_;  // weights, KV
  std::vector<device::Mapping> mappings_;
  std::vector<std::shared_ptr<const Window>> windows_;
  Grants grants_;
  std::shared_ptr<Lease> lease_ = std::make_shared<Lease>();
  std::unique_ptr<DataServer> server_;
  v1::PeerAddress peer_;
  std::shared_ptr<Transports> transports_;
  std::vector<uint64_t> order_;
  std::vector<std::byte> copy_;
  uint64_t pulled_ = 0;
  int opened_ = 0, by_descriptor_ = 0;
};

// Units of slabs with interleaved units are copied to slabs of another width: from one that is
// exported as a range, from one in parts that cut its lines, and over the network.
TEST_P(NodeTransportTest, FetchesSlabUnitsFromNodeAndNetwork) {
  const device::Shape there{{{1, 96}, {7, 8}, {3, 32}}, 5}, here{there.planes, 3};
  const uint64_t unit = there.unit_bytes(), slab = 5 * unit;
  const std::vector<device::Extent> parts{{9000, 301}, {4000, 500}, {20000, slab - 801}};
  const std::span<std::byte> source = device::View(memory_[0]);
  std::vector<std::byte> whole(source.begin() + 1000, source.begin() + 1000 + slab), joined;
  for (const device::Extent& e : parts) {
    joined.insert(joined.end(), source.begin() + e.offset, source.begin() + e.offset + e.length);
  }
  const auto of = [](std::vector<std::byte>& bytes, const device::Shape& shape, uint64_t first,
                     uint64_t count) {
    device::Memory all = device::Memory::Own(bytes);
    all.shape = &shape;
    return all.Part(first * shape.unit_bytes(), count * shape.unit_bytes());
  };
  const auto hash = [](const device::Memory& memory) {
    uint64_t out = 0;
    EXPECT_TRUE(device::HashNow(memory, &out).ok());
    return out;
  };
  for (const bool network : {false, true}) {
    std::vector<std::byte> one(3 * unit), other(3 * unit), tail(40);
    device::Memory granted = memory_[0].Part(1000, slab);
    granted.shape = &there;
    Grant grant;
    grant.pod = "pod-0";
    grant.lease = lease_;
    grant.pieces = {granted.Part(unit, 3 * unit)};
    if (!network) grant.shown = Shown{windows_[0], {{1000, slab}, {50000, 40}}};
    std::vector<Target> targets;
    const auto add = [&](std::vector<std::byte>& to, std::vector<std::byte>& from, uint64_t at,
                         uint64_t first) {
      for (uint64_t u = 0; u < 3; ++u) {
        const device::Memory unit_there = of(from, there, first + u, 1);
        targets.push_back(
            {of(to, here, u, 1), hash(unit_there), {nullptr, at, unit, &there, unit_there.unit}});
      }
    };
    add(one, whole, 0, 1);
    if (!network) {  // a tail after the first slab, and the slab in parts
      targets.push_back({device::Memory::Own(tail),
                         device::HashOf(source.subspan(50000, 40)),
                         {nullptr, slab, 40}});
      grant.shown->extents.insert(grant.shown->extents.end(), parts.begin(), parts.end());
      add(other, joined, slab + 40, 2);
    }
    TcpTransport tcp(credentials_);
    Transport& transport = network ? static_cast<Transport&>(tcp) : node();
    const Status status = Pull(transport, grants_.Issue(std::move(grant)), targets);
    ASSERT_TRUE(status.ok()) << status.message();
    for (uint64_t u = 0; u < 3; ++u) {
      EXPECT_EQ(hash(of(one, here, u, 1)), hash(of(whole, there, 1 + u, 1))) << network;
      if (network) continue;
      EXPECT_EQ(hash(of(other, here, u, 1)), hash(of(joined, there, 2 + u, 1)));
    }
    EXPECT_EQ(pulled_, (network ? 3 : 6) * unit + (network ? 0 : 40));
  }
  // A source that exports less than its slab.
  Grant less;
  less.pod = "pod-0";
  less.lease = lease_;
  less.pieces = {memory_[0].Part(1000, unit)};
  less.shown = Shown{windows_[0], {{1000, slab - 1}}};
  std::vector<std::byte> to(3 * unit);
  const Target last{of(to, here, 0, 1), 1, {nullptr, 0, unit, &there, 4}};
  EXPECT_EQ(Pull(node(), grants_.Issue(std::move(less)), {last}).code(), Code::kUnavailable);
}

TEST_P(NodeTransportTest, FetchesEveryByteInOrderRepeatedly) {
  ASSERT_STREQ(node().name(), "node");
  for (int round = 0; round < 3; ++round) {
    const auto targets = Targets();
    const Status pulled = Pull(node(), Issue(), targets);
    ASSERT_TRUE(pulled.ok()) << pulled.message();
    ExpectPulled();
  }
  transports_->EndAttempt();
  const auto targets = Targets();
  ASSERT_TRUE(Pull(node(), Issue(), targets).ok()) << "and after the attempt";
  ExpectPulled();
  EXPECT_EQ(server_->welcomed(), 1U) << "one connection";
}

TEST_P(NodeTransportTest, ReusesSeparateKvAndPieceConnections) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto targets = Targets();
    ASSERT_TRUE(Pull(node(), Issue(), targets).ok());
    KvLink link = Kv();
    const auto ranges = KvRanges();
    const Status read = link.Read(ranges, {});
    ASSERT_TRUE(read.ok()) << read.message();
    transports_->EndAttempt();
  }
  EXPECT_EQ(server_->welcomed(), 2U);
}

TEST_P(NodeTransportTest, IdleConnectionHoldsNoMemory) {
  const auto targets = Targets();
  ASSERT_TRUE(Pull(node(), Issue(), targets).ok());
  const std::vector<std::weak_ptr<const Window>> windows(windows_.begin(), windows_.end());
  windows_.clear();
  lease_->End();
  const auto held = [&] {
    return std::ranges::count_if(windows, [](const auto& w) { return !w.expired(); });
  };
  EXPECT_TRUE(tangram::testing::Eventually([&] { return held() == 0; })) << held();
}

TEST_P(NodeTransportTest, UsesTcpWhenPeerHasNoNodeSocket) {
  v1::PeerAddress beyond = peer_;
  beyond.set_data("127.0.0.1:1");
  EXPECT_STREQ(transports_->For(beyond).name(), "tcp");
  EXPECT_STREQ(transports_->For(peer_).name(), "node");
  transports_->Failed(node(), peer_);
  EXPECT_STREQ(transports_->For(peer_).name(), "tcp") << "what failed is not asked again";
  transports_->EndAttempt();
  EXPECT_STREQ(transports_->For(peer_).name(), "node") << "but by the next attempt";
  server_.reset();
  EXPECT_FALSE(fs::exists(Socket())) << "it went with it";
  EXPECT_STREQ(transports_->For(peer_).name(), "tcp");
}

TEST_P(NodeTransportTest, IgnoresAndReplacesStaleSocket) {
  server_.reset();
  {
    const auto killed = net::Listen("unix:" + Socket().string());
    ASSERT_TRUE(killed.ok()) << killed.status().message();
    EXPECT_STREQ(transports_->For(peer_).name(), "node");
  }
  ASSERT_TRUE(fs::exists(Socket()));
  EXPECT_STREQ(transports_->For(peer_).name(), "tcp");
  StartServer();
  EXPECT_STREQ(transports_->For(peer_).name(), "node");
  const auto targets = Targets();
  EXPECT_TRUE(Pull(node(), Issue(), targets).ok());
  ExpectPulled();
}

TEST_P(NodeTransportTest, AcceptsTokenOnceFromRequestingPod) {
  const auto targets = Targets();
  const std::string token = Issue();
  ASSERT_TRUE(Pull(node(), token, targets).ok());
  EXPECT_FALSE(Pull(node(), token, targets).ok());
  EXPECT_EQ(pulled_, 0U);
  EXPECT_FALSE(Pull(node(), Issue("pod-1"), targets).ok());
  EXPECT_FALSE(Pull(node(), std::string(16, '\0'), targets).ok()) << "a question, and no token";
  // A token without exported memory is not valid here.
  Grant plain;
  plain.pod = "pod-0";
  plain.pieces.push_back(memory_[0]);
  EXPECT_FALSE(Pull(node(), grants_.Issue(std::move(plain)), targets).ok());
}

TEST_P(NodeTransportTest, ExportsNothingToPeersOtherThanAgentsOfWorld) {
  const net::testing::TestCa other;
  const auto targets = Targets();
  for (const auto& credentials :
       {other.Open("w", "agent", "pod-0"), ca_.Open("v", "agent", "pod-0"),
        ca_.Open("w", "engine", "pod-0"), net::Credentials::Insecure()}) {
    const std::string token = Issue();
    const auto stranger = Both(folder_, credentials);
    EXPECT_FALSE(Pull(stranger->For(peer_), token, targets).ok());
    EXPECT_EQ(pulled_, 0U);
    EXPECT_TRUE(grants_.Redeem(token, "pod-0")) << "the token was looked at";
  }
}

// Another process listens in the source's place: it gets no token, and the network remains.
TEST_P(NodeTransportTest, SendsNoTokenToImpostor) {
  const net::testing::TestCa other;
  const std::string port = std::to_string(server_->port());
  auto squatter = DataServer::Start({.listen = "127.0.0.2:" + port,
                                     .node_socket_dir = folder_,
                                     .advertise = "127.0.0.1",
                                     .credentials = other.Open("w", "agent", "pod-0")},
                                    &grants_);
  ASSERT_TRUE(squatter.ok()) << squatter.status().message();
  const auto targets = Targets();
  const std::string token = Issue();
  ASSERT_STREQ(node().name(), "node");
  const Status pulled = Pull(node(), token, targets);
  EXPECT_EQ(pulled.code(), Code::kUnavailable) << pulled.message();
  EXPECT_TRUE(grants_.Redeem(token, "pod-0")) << "the token was told";
  transports_->Failed(node(), peer_);
  EXPECT_TRUE(Pull(node(), Issue(), targets).ok()) << "by TCP";
  ExpectPulled();
}

TEST_P(NodeTransportTest, DetectsChangedOrCorruptBytes) {
  const auto targets = Targets();
  device::View(memory_[0])[order_.empty() ? 0 : order_[0]] ^= std::byte{1};
  const Status pulled = Pull(node(), Issue(), targets);
  EXPECT_EQ(pulled.code(), Code::kCorrupt) << pulled.message();
  EXPECT_NE(pulled.message().find("unit 0 of 40"), std::string::npos) << pulled.message();
  ASSERT_TRUE(fault::Arm("stage.after_fetch=corrupt@3").ok());
  const auto again = Targets();
  EXPECT_EQ(Pull(node(), Issue(), again).code(), Code::kCorrupt);
  EXPECT_EQ(pulled_, 2 * kUnit);
}

// The pages have other bytes by now, but that is no corruption.
TEST_P(NodeTransportTest, ReportsReleasedMemoryAsUnavailable) {
  const auto targets = Targets();
  const std::string token = Issue();
  lease_->End();
  EXPECT_EQ(Pull(node(), token, targets).code(), Code::kUnavailable) << "before it is shown";

  lease_ = std::make_shared<Lease>();
  const auto wrong = Targets();
  int units = 0;
  const Status pulled = node().Pull(peer_, Issue(), wrong, {}, [&](uint64_t) {
    if (++units > 1) return;
    lease_->End();
    std::ranges::fill(device::View(memory_[0]), std::byte{0});
  });
  EXPECT_EQ(pulled.code(), Code::kUnavailable) << pulled.message();
  EXPECT_EQ(units, 1);
}

// A receiver of exported memory can read it, and never write it.
TEST_P(NodeTransportTest, ExportsReadOnlyDescriptors) {
  const SharedFd shown = windows_[1]->memory().descriptor(0).value();
  void* const at = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, shown->get(), 0);
  EXPECT_EQ(at, MAP_FAILED);
  EXPECT_EQ(pwrite(shown->get(), "x", 1, 0), -1);
}

TEST_P(NodeTransportTest, RejectsShrinkableOrShortMemory) {
  const UniqueFd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 8 * kPage), 0);
  const auto peer = [&](uint64_t bytes, uint64_t unit) {
    return PeerMemory::Of(std::move(platform_->Importers().weights), bytes, unit).value();
  };
  EXPECT_EQ(peer(8 * kPage, 8 * kPage)->Give(0, loose.get()).code(), Code::kInvalid)
      << "its owner could cut it and end its readers";
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(peer(9 * kPage, 9 * kPage)->Give(0, loose.get()).code(), Code::kInvalid);
  const auto memory = peer(8 * kPage, 8 * kPage);
  EXPECT_EQ(memory->At({5, kPage}).status().code(), Code::kInvalid) << "nothing was given yet";
  const Status given = memory->Give(0, loose.get());
  ASSERT_TRUE(given.ok()) << given.message();
  EXPECT_TRUE(memory->At({5, 7 * kPage}).ok());
  for (const device::Extent& outside :
       {device::Extent{8 * kPage, 1}, {7 * kPage, kPage + 1}, {~uint64_t{0}, 2}}) {
    EXPECT_EQ(memory->At(outside).status().code(), Code::kInvalid) << outside.offset;
  }
  for (const auto& [bytes, unit] :
       {std::pair{uint64_t{0}, kPage}, {kPage, 0}, {kPage, kPage / 2}, {~uint64_t{0}, kPage}}) {
    EXPECT_EQ(
        PeerMemory::Of(std::move(platform_->Importers().weights), bytes, unit).status().code(),
        Code::kInvalid)
        << bytes << " by " << unit;
  }
}

TEST_P(NodeTransportTest, ReadsKvInPlace) {
  KvLink link = Kv();
  for (int round = 0; round < 3; ++round) {
    const auto ranges = KvRanges();
    const Status read = link.Read(ranges, {});
    ASSERT_TRUE(read.ok()) << read.message();
    for (const KvRange& range : ranges) {
      ASSERT_TRUE(std::ranges::equal(device::View(range.to),
                                     device::View(memory_[1]).subspan(range.source_offset, 64)));
    }
  }
  EXPECT_EQ(opened_, 1);
  EXPECT_EQ(by_descriptor_, 1);
  const KvRange outside{memory_[1].bytes - 63, device::Memory::Own(std::span(copy_).first(64))};
  EXPECT_EQ(link.Read({&outside, 1}, {}).code(), Code::kUnavailable);
}

TEST_P(NodeTransportTest, RejectsKvReadAfterLeaseEnd) {
  KvLink link = Kv();
  ASSERT_TRUE(link.Read(KvRanges(), {}).ok());
  lease_->End();
  EXPECT_EQ(link.Read(KvRanges(), {}).code(), Code::kUnavailable);
  lease_ = std::make_shared<Lease>();
  EXPECT_TRUE(link.Read(KvRanges(), {}).ok()) << "over the network now";
  EXPECT_EQ(by_descriptor_, 1);
  EXPECT_EQ(opened_, 2);
}

TEST_P(NodeTransportTest, ReconnectsKvAfterAgentRestart) {
  KvLink link = Kv();
  ASSERT_TRUE(link.Read(KvRanges(), {}).ok());
  const std::string listen = peer_.data();
  server_.reset();
  auto server = DataServer::Start({.listen = listen,
                                   .node_socket_dir = folder_,
                                   .advertise = "127.0.0.1",
                                   .credentials = credentials_},
                                  &grants_);
  ASSERT_TRUE(server.ok()) << server.status().message();
  server_ = std::move(server).value();
  EXPECT_TRUE(link.Read(KvRanges(), {}).ok());
  EXPECT_EQ(by_descriptor_, 2);
}

// A connection may request the descriptors of its exported memory, and no others.
TEST_P(NodeTransportTest, RejectsRequestForUnexportedDescriptor) {
  const auto asked = [&](uint64_t number) {
    auto stream = net::Connect("unix:" + Socket().string(), credentials_, {}).value();
    Grant grant;
    grant.pod = "pod-0";
    grant.lease = lease_;
    grant.pieces = {memory_[0].Part(0, kPage)};
    grant.shown = Shown{windows_[0], {{0, kPage}}};
    const std::string token = grants_.Issue(std::move(grant));
    EXPECT_TRUE(net::WriteAll(*stream, std::as_bytes(std::span(token)), {}).ok());
    stream->Expect(2);
    std::array<uint64_t, 7> shown{};
    EXPECT_TRUE(net::ReadAll(*stream, std::as_writable_bytes(std::span(shown)), {}).ok());
    const std::array<uint64_t, 2> question{0, number + 1};
    EXPECT_TRUE(net::WriteAll(*stream, std::as_bytes(std::span(question)), {}).ok());
    uint64_t answer = 0;
    const Status status = net::ReadAll(*stream, std::as_writable_bytes(std::span(&answer, 1)), {});
    EXPECT_EQ(stream->TakeDescriptors().size(), status.ok() ? 2 : 1);
    return status;
  };
  EXPECT_TRUE(asked(0).ok());
  for (const uint64_t other : {uint64_t{1}, uint64_t{7}, ~uint64_t{1}}) {
    EXPECT_FALSE(asked(other).ok()) << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Descriptors, NodeTransportTest, ::testing::Values(0, 16 * kPage),
                         [](const auto& info) { return info.param == 0 ? "One" : "Several"; });

}  // namespace
}  // namespace tangram::mover
