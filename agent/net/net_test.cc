// Connections between pods: which peers are accepted, and how much the others may cost.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <thread>

#include "agent/net/address.h"
#include "agent/net/blocking.h"
#include "agent/net/frame.h"
#include "agent/net/socket.h"
#include "agent/net/strangers.h"
#include "agent/net/testing/certs.h"
#include "agent/net/testing/pair.h"
#include "agent/net/testing/thief.h"

namespace tangram::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Pair;
using testing::TestCa;

TEST(Address, ParsesAndFormatsHostPort) {
  const auto read = [](const std::string& text) {
    const auto parsed = ParseHostPort(text);
    return parsed.ok() ? parsed->host + " " + std::to_string(parsed->port) : "";
  };
  EXPECT_EQ(read("10.0.0.1:7101"), "10.0.0.1 7101");
  EXPECT_EQ(read("pod.svc:0"), "pod.svc 0");
  EXPECT_EQ(read("[fd00::1]:7200"), "fd00::1 7200");
  for (const char* bad : {"", ":1", "host", "host:", "host:x", "host:65536", "host:-1",
                          "fd00::1:72", "[]:1", "[::1", "[::1]", "[[::1]]:1", "a]:1"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
  EXPECT_EQ(JoinHostPort("10.0.0.1", 1), "10.0.0.1:1");
  EXPECT_EQ(JoinHostPort("fd00::1", 65535), "[fd00::1]:65535");
  EXPECT_EQ(JoinHostPort("[fd00::1]", 2), "[fd00::1]:2");
}

TEST(Address, ListensAndConnectsOverIPv6) {
  const auto listener = Listen("[::1]:0");
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const auto plain = Credentials::Insecure();
  EXPECT_TRUE(Connect(JoinHostPort("::1", *PortOf(listener->get())), plain, {}).ok());
}

// The processes of a pod listen so, because they do not know their addresses yet.
TEST(Address, WildcardListensOnIPv4AndIPv6) {
  const auto listener = Listen("[::]:0");
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const auto plain = Credentials::Insecure();
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto met = Connect(JoinHostPort(host, *PortOf(listener->get())), plain, {});
    EXPECT_TRUE(met.ok()) << host << ": " << met.status().message();
  }
}

// Makes IPv6 sockets of this thread fail as in a kernel without IPv6.
void TakeIPv6Away() {
  std::array<sock_filter, 6> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{filter.size(), filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(Address, WildcardListensOnIPv4WithoutIPv6) {
  std::jthread([] {
    ASSERT_NO_FATAL_FAILURE(TakeIPv6Away());
    ASSERT_FALSE(Listen("[::1]:0").ok());
    const auto listener = Listen("[::]:0");
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    EXPECT_TRUE(
        Connect(JoinHostPort("127.0.0.1", *PortOf(listener->get())), Credentials::Insecure(), {})
            .ok());
  }).join();
}

// If the kernel cannot report the state of a socket, it does not count as connected.
TEST(Stream, IsNotConnectedWhenSocketStateIsUnknown) {
  UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  Stream stream(std::move(file), Side::kDialled, Credentials::Insecure());
  const auto done = stream.Handshake();
  EXPECT_EQ(done.status().code(), Code::kUnavailable);
  EXPECT_NE(done.status().message().find("Socket operation on non-socket"), std::string::npos)
      << done.status().message();
}

TEST(Certificate, ReportsExpiry) {
  const TestCa ca;
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("tangram-net-{}", getpid());
  std::filesystem::create_directory(dir);
  const TlsFiles files = ca.Write("spiffe://tangram/w/agent/pod-0", dir, "a");
  const auto end = EndOf(files.cert);
  ASSERT_TRUE(end.ok()) << end.status().message();
  const auto left = *end - std::chrono::system_clock::now();  // an hour from when it was made
  EXPECT_LE(left, std::chrono::hours(1));
  EXPECT_GT(left, std::chrono::minutes(50));
  EXPECT_EQ(EndOf(files.key).status().code(), Code::kInvalid) << "no certificate";
  std::filesystem::remove_all(dir);
  EXPECT_EQ(EndOf(files.cert).status().code(), Code::kInvalid) << "no file";
}

TEST(Tls, IdentifiesPeerPodOnBothSides) {
  const TestCa ca;
  const Pair pair(ca.Open("w", "agent", "p0"), ca.Open("w", "agent", "p1"));
  ASSERT_TRUE(pair.Agreed()) << pair.client_end.message() << pair.server_end.message();
  EXPECT_EQ(pair.client->pod(), "p1");
  EXPECT_EQ(pair.server->pod(), "p0");
}

const TestCa& Other() {
  static const TestCa ca;
  return ca;
}

TEST(Tls, RejectsServerOtherThanAgentOfWorld) {
  const TestCa ca;
  const auto mine = ca.Open("w", "agent", "p0");
  EXPECT_EQ(Pair(mine, Other().Open("w", "agent", "p1")).client_end.code(), Code::kUnauthenticated);
  EXPECT_EQ(Pair(mine, ca.Open("v", "agent", "p1")).client_end.code(), Code::kUnauthenticated);
  EXPECT_EQ(Pair(mine, ca.Open("w", "engine", "p1")).client_end.code(), Code::kUnauthenticated);
}

// The dialling attackers trust any server, so the accepting side must reject them.
TEST(Tls, RejectsClientOtherThanAgentOfWorld) {
  const TestCa ca;
  const auto mine = ca.Open("w", "agent", "p0");
  const auto listener = Listen("127.0.0.1:0");
  const std::string address = "127.0.0.1:" + std::to_string(*PortOf(listener->get()));
  const auto meets = [&](const std::optional<TlsTexts>& shows) {
    std::thread thief([&] { testing::Steal(address, shows, "hello", 1); });
    pollfd knock{listener->get(), POLLIN, 0};
    EXPECT_EQ(poll(&knock, 1, 60'000), 1);
    auto accepted = Accept(listener->get());
    auto stream = std::make_unique<Stream>(std::move(accepted).value(), Side::kAccepted, mine);
    Result<bool> known = false;
    while ((known = stream->Handshake()).ok() && !*known) {
      pollfd wait{stream->fd(), stream->waits_for(), 0};
      poll(&wait, 1, 60'000);
    }
    stream.reset();
    thief.join();
    return known.status().code();
  };
  EXPECT_EQ(meets({}), Code::kUnauthenticated) << "no certificate";
  EXPECT_EQ(meets(Other().Issue("spiffe://tangram/w/agent/p1")), Code::kUnauthenticated);
  EXPECT_EQ(meets(ca.Issue("spiffe://tangram/v/agent/p1")), Code::kUnauthenticated);
  EXPECT_EQ(meets(ca.Issue("spiffe://tangram/w/engine/p1")), Code::kUnauthenticated);
  EXPECT_EQ(meets(ca.Issue("spiffe://tangram/w/agent/p1")), Code::kOk);
}

TEST(Tls, ReportsReasonForRejection) {
  const TestCa ca;
  // The dialling side checks last: it has its result before the other side.
  const Pair pair(ca.Open("w", "agent", "p0"), ca.Open("w", "engine", "p1"));
  EXPECT_EQ(pair.client_end.code(), Code::kUnauthenticated);
  EXPECT_NE(pair.client_end.message().find("is not agent.w"), std::string::npos)
      << pair.client_end.message();
}

TEST(Tls, TransfersManyBytesInOddPartsWithAndWithoutTls) {
  const TestCa ca;
  for (const bool secure : {true, false}) {
    const auto credentials = [&](const char* pod) {
      return secure ? ca.Open("w", "agent", pod) : Credentials::Insecure();
    };
    const Pair pair(credentials("p0"), credentials("p1"));
    ASSERT_TRUE(pair.Agreed());
    std::vector<std::byte> sent(5 << 20), got(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = std::byte(i * 31 + i / 251);
    std::thread reader([&] { EXPECT_TRUE(ReadAll(*pair.server, got, {}).ok()); });
    // Many small parts, and some larger than a record.
    std::vector<iovec> parts;
    for (size_t at = 0, i = 0; at < sent.size(); ++i) {
      const size_t size = std::min(sent.size() - at, i % 700 == 3 ? size_t{100'000} : i % 5 * 64);
      parts.push_back({sent.data() + at, size});
      at += size;
    }
    for (size_t at = 0; at < parts.size();) {
      auto put = pair.client->Write(std::span(parts).subspan(at));
      ASSERT_TRUE(put.ok()) << put.status().message();
      if (*put == 0) {
        pollfd wait{pair.client->fd(), POLLOUT, 0};
        poll(&wait, 1, 1000);
      }
      for (size_t left = *put; at < parts.size();) {
        const size_t step = std::min(left, parts[at].iov_len);
        parts[at].iov_base = static_cast<std::byte*>(parts[at].iov_base) + step;
        parts[at].iov_len -= step;
        left -= step;
        if (parts[at].iov_len > 0) break;
        ++at;
      }
    }
    reader.join();
    EXPECT_TRUE(got == sent) << (secure ? "TLS" : "plain");
  }
}

TEST(Tls, EncryptsBytesOnTheWire) {
  const TestCa ca;
  const Pair pair(ca.Open("w", "agent", "p0"), ca.Open("w", "agent", "p1"));
  ASSERT_TRUE(pair.Agreed());
  const std::string secret = "the prompt of somebody else";
  ASSERT_TRUE(WriteAll(*pair.client, std::as_bytes(std::span(secret)), {}).ok());
  pollfd wait{pair.server->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 10'000), 1);
  std::string wire(1000, '\0');
  wire.resize(static_cast<size_t>(recv(pair.server->fd(), wire.data(), wire.size(), MSG_PEEK)));
  EXPECT_GT(wire.size(), secret.size());
  EXPECT_EQ(wire.find(secret), std::string::npos);
  std::string got(secret.size(), '\0');
  ASSERT_TRUE(ReadAll(*pair.server, std::as_writable_bytes(std::span(got)), {}).ok());
  EXPECT_EQ(got, secret);
}

TEST(Tls, UsesRenewedFilesForNewConnections) {
  char name[] = "/tmp/tangram-net-XXXXXX";
  const std::string dir = mkdtemp(name);
  const TestCa ca, next;
  const auto write = [&](const TestCa& by, const std::string& pod) {
    return by.Write("spiffe://tangram/w/agent/" + pod, dir, "own");
  };
  auto opened = Credentials::Open(write(ca, "old"), "w", "agent");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto mine = *opened;
  const auto peer = ca.Open("w", "agent", "p1"), later = next.Open("w", "agent", "p2");
  const Pair before(mine, peer);
  ASSERT_TRUE(before.Agreed());
  EXPECT_EQ(before.server->pod(), "old");

  // The files are incomplete: the last valid ones stay.
  std::filesystem::remove(dir + "/own.key");
  EXPECT_FALSE(mine->Reload().ok());
  EXPECT_TRUE(Pair(mine, peer).Agreed());

  // The files are checked without a call.
  write(next, "new");
  const auto until = std::chrono::steady_clock::now() + seconds(60);
  std::string seen;
  while (seen != "new" && std::chrono::steady_clock::now() < until) {
    const Pair now(mine, later);
    if (now.Agreed()) seen = now.server->pod();
  }
  EXPECT_EQ(seen, "new");
  EXPECT_FALSE(Pair(mine, peer).Agreed()) << "of the authority that was";
  // Earlier connections continue.
  const std::string text = "still here";
  std::string got(text.size(), '\0');
  EXPECT_TRUE(WriteAll(*before.client, std::as_bytes(std::span(text)), {}).ok());
  EXPECT_TRUE(ReadAll(*before.server, std::as_writable_bytes(std::span(got)), {}).ok());
  EXPECT_EQ(got, text);
  std::filesystem::remove_all(dir);
}

TEST(Tls, NamesInvalidFiles) {
  char name[] = "/tmp/tangram-net-XXXXXX";
  const std::string dir = mkdtemp(name);
  const TestCa ca;
  const TlsFiles good = ca.Write("spiffe://tangram/w/agent/p", dir, "good");
  const TlsFiles other = ca.Write("spiffe://tangram/w/agent/q", dir, "other");
  for (const auto& [files, what] :
       {std::pair{TlsFiles{dir + "/none", good.cert, good.key}, "authority"},
        {TlsFiles{good.ca, dir + "/none", good.key}, "certificate"},
        {TlsFiles{good.ca, good.cert, other.key}, "key"}}) {
    const auto opened = Credentials::Open(files, "w", "agent");
    EXPECT_EQ(opened.status().code(), Code::kInvalid);
    EXPECT_NE(opened.status().message().find(what), std::string::npos) << opened.status().message();
  }
  std::filesystem::remove_all(dir);
}

TEST(Frames, AllocatesAsBytesArrive) {
  FrameReader reader(8, [](std::span<const std::byte> header) -> Result<size_t> {
    uint64_t size = 0;
    std::memcpy(&size, header.data(), sizeof size);
    if (size > 1 << 30) return Status{Code::kInvalid, "too long"};
    return size;
  });
  const auto feed = [&](uint64_t announce, size_t bytes) {
    std::memcpy(reader.Room().data(), &announce, 8);
    Status status = reader.Filled(8);
    for (size_t left = bytes; status.ok() && left > 0 && !reader.whole();) {
      const size_t step = std::min(left, reader.Room().size());
      std::fill_n(reader.Room().begin(), step, std::byte{7});
      status = reader.Filled(step);
      left -= step;
    }
    return status;
  };
  EXPECT_TRUE(feed(5 << 20, 5 << 20).ok());
  ASSERT_TRUE(reader.whole());
  EXPECT_EQ(reader.Take(), std::vector<uint8_t>(5 << 20, 7));
  EXPECT_TRUE(feed(0, 0).ok());
  ASSERT_TRUE(reader.whole()) << "an empty body";
  EXPECT_TRUE(reader.Take().empty());
  EXPECT_FALSE(feed((1 << 30) + 1, 0).ok());
  FrameReader big(1, [](auto) -> Result<size_t> { return size_t{1} << 30; });
  ASSERT_TRUE(big.Filled(1).ok());
  EXPECT_LE(big.Room().size(), 1 << 20) << "a gigabyte was announced, nothing came";
}

// A reader that is stopped takes no bytes and sends none, like a host that lost its power or its
// link. The kernel closes the connection, on either end.
TEST(Socket, KernelClosesConnectionWhenPeerStopsReading) {
  const TcpLimits soon{.user_timeout = milliseconds(300)};
  for (const bool dialled : {true, false}) {
    const UniqueFd listener = std::move(Listen("127.0.0.1:0")).value();
    const std::string at = fmt::format("127.0.0.1:{}", PortOf(listener.get()).value());
    const UniqueFd from = std::move(Dial(at, dialled ? soon : TcpLimits{})).value();
    pollfd waits{listener.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waits, 1, 60'000), 1);
    const UniqueFd to = std::move(Accept(listener.get(), dialled ? TcpLimits{} : soon)).value();
    ASSERT_GE(to.get(), 0);
    const int writer = dialled ? from.get() : to.get();
    const std::vector<char> bytes(1 << 20);
    const auto began = std::chrono::steady_clock::now();
    ssize_t sent = 0;
    while (std::chrono::steady_clock::now() - began < seconds(60)) {
      sent = send(writer, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) break;
      waits = {writer, 0, 0};  // it stops polling after an error
      (void)poll(&waits, 1, 50);
    }
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(errno, ETIMEDOUT) << "the end that " << (dialled ? "dialled" : "accepted");
  }
}

TEST(Socket, EnablesKeepAliveAndUserTimeout) {
  const UniqueFd listener = std::move(Listen("127.0.0.1:0")).value();
  const UniqueFd fd =
      std::move(Dial(fmt::format("127.0.0.1:{}", PortOf(listener.get()).value()))).value();
  const auto get = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(fd.get(), level, name, &value, &size), 0);
    return value;
  };
  const TcpLimits limits;
  EXPECT_EQ(get(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(get(IPPROTO_TCP, TCP_KEEPIDLE), limits.keep_alive_idle.count());
  EXPECT_EQ(get(IPPROTO_TCP, TCP_KEEPINTVL), limits.keep_alive_interval.count());
  EXPECT_EQ(get(IPPROTO_TCP, TCP_USER_TIMEOUT), limits.user_timeout.count());
}

TEST(Strangers, LimitsCountAndLifetime) {
  using Clock = Strangers<int>::Clock;
  const Clock::time_point start{};
  Strangers<int> strangers({.most = 3, .until = milliseconds(100), .young = milliseconds(10)});
  const auto enter = [&](int who, int at_ms) {
    const auto now = start + milliseconds(at_ms);
    if (!strangers.MayEnter(now)) return false;
    strangers.Enter(std::make_unique<int>(who), now);
    return true;
  };
  EXPECT_TRUE(enter(1, 0));
  EXPECT_TRUE(enter(2, 5));
  EXPECT_TRUE(enter(3, 6));
  EXPECT_FALSE(enter(4, 8)) << "nobody younger than 10 ms makes room";
  EXPECT_TRUE(enter(5, 12));
  EXPECT_EQ(strangers.at(0), 2) << "the oldest went";
  EXPECT_EQ(*strangers.Leave(1), 3);
  strangers.Sweep();
  EXPECT_EQ(strangers.size(), 2u);
  EXPECT_TRUE(strangers.MayEnter(start + milliseconds(107)));
  EXPECT_EQ(strangers.size(), 1u) << "its time was up";
}

}  // namespace
}  // namespace tangram::net
