// tangram-transport: the rate of transfers between two hosts, next to a plain sender with the best
// number of connections. The hosts are two network namespaces with a veth pair, a source in one and
// a reader in the other; 1 to 64 MiB per transfer, without and with TLS. Both senders read into
// place, hash units of the same size and use the same cipher, over existing connections. Prints one
// JSON object per size, then the summary. Needs root for the namespaces, which end with it.
//
// `tangram-transport tests/peers/pair.py` also measures NIXL, Mooncake and iperf3 between the same
// two namespaces, each in its best setting, without TLS, which they do not have. Their clocks stop
// before their bytes are compared; ours includes the hashing.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/background.h"
#include "agent/device/hash.h"
#include "agent/mover/data_server.h"
#include "agent/mover/grants.h"
#include "agent/mover/mover.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/transport_peer.h"
#include "agent/net/testing/certs.h"

namespace tangram::mover {
namespace {

constexpr uint64_t kMiB = 1 << 20, kMost = 64 * kMiB, kUnit = kMiB;
constexpr const char* kSource = "10.211.0.1";
constexpr const char* kReader = "10.211.0.2";
constexpr int kStreams[] = {1, 2, 4};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "tangram-transport: %s (%s)\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}
void Must(bool done, const std::string& what) {
  if (!done) Die(what);
}
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Die(result.status().message());
  return std::move(result).value();
}

// Several times the last-level cache.
uint64_t MemoryBytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  uint64_t kib = 0;
  file >> kib;
  return std::max(4 * kMost, 4 * (kib << 10) / kMost * kMost);
}

// Data that both processes share before the fork.
struct Stage {
  net::testing::TestCa ca;
  std::shared_ptr<net::Credentials> source = ca.Open("bench", "agent", "source");
  std::shared_ptr<net::Credentials> reader = ca.Open("bench", "agent", "reader");
  std::shared_ptr<net::Credentials> plain = net::Credentials::Insecure();
  std::vector<std::byte> memory;
  std::vector<uint64_t> hashes;  // by unit

  const std::shared_ptr<net::Credentials>& Of(const std::shared_ptr<net::Credentials>& role,
                                              bool secure) const {
    return secure ? role : plain;
  }
};

// --- the plain sender: one thread and one blocking socket per connection ---

// A socket, or TLS on it.
class Pipe {
 public:
  Pipe(int fd, const std::shared_ptr<net::Credentials>& credentials, bool accepts) : fd_(fd) {
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!credentials->secure()) return;
    ssl_ = SSL_new(credentials->Current().get());
    SSL_set_fd(ssl_, fd);
    Must((accepts ? SSL_accept(ssl_) : SSL_connect(ssl_)) == 1, "shaking hands");
  }
  ~Pipe() {
    SSL_free(ssl_);
    close(fd_);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  bool Read(void* to, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
      size_t n = 0;
      if (ssl_ == nullptr) {
        const ssize_t some = recv(fd_, static_cast<char*>(to) + got, bytes - got, 0);
        if (some <= 0) return false;
        n = static_cast<size_t>(some);
      } else if (SSL_read_ex(ssl_, static_cast<char*>(to) + got, bytes - got, &n) != 1) {
        return false;
      }
      got += n;
    }
    return true;
  }
  bool Write(const void* from, size_t bytes) {
    for (size_t put = 0; put < bytes;) {
      size_t n = 0;
      if (ssl_ == nullptr) {
        const ssize_t some = send(fd_, static_cast<const char*>(from) + put, bytes - put, 0);
        if (some <= 0) return false;
        n = static_cast<size_t>(some);
      } else if (SSL_write_ex(ssl_, static_cast<const char*>(from) + put, bytes - put, &n) != 1) {
        return false;
      }
      put += n;
    }
    return true;
  }
  std::string cipher() const { return ssl_ == nullptr ? "none" : SSL_get_cipher_name(ssl_); }

 private:
  const int fd_;
  SSL* ssl_ = nullptr;
};

struct Wish {
  uint64_t offset = 0, bytes = 0;
};

void SendPlainly(const Stage& stage, int fd, bool secure) {
  YieldToServing();  // as ours does
  Pipe pipe(fd, stage.Of(stage.source, secure), true);
  Wish wish;
  while (pipe.Read(&wish, sizeof wish) &&
         pipe.Write(stage.memory.data() + wish.offset, wish.bytes)) {
  }
}

uint16_t ListenPlainly(const Stage& stage, bool secure) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  Must(inet_pton(AF_INET, kSource, &address.sin_addr) == 1, kSource);
  Must(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 16) == 0,
       "listening");
  socklen_t length = sizeof address;
  Must(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  std::thread([&stage, fd, secure] {
    while (true) {
      const int accepted = accept(fd, nullptr, nullptr);
      Must(accepted >= 0, "accepting");
      std::thread(SendPlainly, std::cref(stage), accepted, secure).detach();
    }
  }).detach();
  return ntohs(address.sin_port);
}

std::unique_ptr<Pipe> DialPlainly(const Stage& stage, uint16_t port, bool secure) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  Must(inet_pton(AF_INET, kSource, &address.sin_addr) == 1, kSource);
  Must(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connecting");
  return std::make_unique<Pipe>(fd, stage.Of(stage.reader, secure), false);
}

// --- the two processes ---

struct Ports {
  uint16_t ours[2] = {}, plain[2] = {};  // without and with TLS
};

// Requests a token for the wish, over a channel that stands for the agents' gRPC.
void PlaySource(const Stage& stage, int channel) {
  Grants grants;
  std::vector<std::unique_ptr<DataServer>> servers;
  Ports ports;
  for (const bool secure : {false, true}) {
    DataServer::Options options;
    options.listen = fmt::format("{}:0", kSource);
    options.credentials = stage.Of(stage.source, secure);
    servers.push_back(Must(DataServer::Start(std::move(options), &grants)));
    ports.ours[secure ? 1 : 0] = servers.back()->port();
    ports.plain[secure ? 1 : 0] = ListenPlainly(stage, secure);
  }
  Must(write(channel, &ports, sizeof ports) == sizeof ports, "telling ports");
  Wish wish;
  while (read(channel, &wish, sizeof wish) == sizeof wish) {
    Grant grant;
    grant.pod = "reader";
    auto* const from = const_cast<std::byte*>(stage.memory.data()) + wish.offset;
    grant.pieces.push_back(device::Memory::Own({from, wish.bytes}));
    const std::string token = grants.Issue(std::move(grant));
    Must(write(channel, token.data(), token.size()) == static_cast<ssize_t>(token.size()), "token");
  }
  std::exit(0);
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Reader {
 public:
  Reader(const Stage& stage, int channel) : stage_(stage), channel_(channel) {
    Must(read(channel, &ports_, sizeof ports_) == sizeof ports_, "hearing of ports");
    copy_.assign(stage.memory.size(), std::byte{0});
  }

  // GB/s of a size, by our transport and by plain senders with 1, 2 and 4 connections, in turns.
  nlohmann::json Measure(uint64_t size, bool secure, int rounds) {
    TcpTransport links(stage_.Of(stage_.reader, secure));
    std::map<int, std::vector<std::unique_ptr<Pipe>>> pipes;
    for (const int streams : kStreams) {
      for (int i = 0; i < streams; ++i) {
        pipes[streams].push_back(DialPlainly(stage_, ports_.plain[secure ? 1 : 0], secure));
      }
    }
    std::vector<double> ours;
    std::map<int, std::vector<double>> plain;
    for (int round = -1; round < rounds; ++round) {  // the first round creates our connection
      const double mine = Seconds([&] { Pull(&links, size, secure); });
      if (round >= 0) ours.push_back(mine);
      for (auto& [streams, ends] : pipes) {
        if (size / streams < kUnit) continue;
        const double took = Seconds([&, &ends = ends] { ReadPlainly(ends, size); });
        if (round >= 0) plain[streams].push_back(took);
      }
    }
    const auto rate = [&](const std::vector<double>& times) {
      return static_cast<double>(size) / Median(times) / 1e9;
    };
    nlohmann::json out = {{"bench", "transport"},
                          {"mib", size / kMiB},
                          {"cipher", pipes[1][0]->cipher()},
                          {"gb_per_s", rate(ours)}};
    double best = 0;
    for (const auto& [streams, times] : plain) {
      out[fmt::format("plain_{}_gb_per_s", streams)] = rate(times);
      best = std::max(best, rate(times));
    }
    out["best_plain_gb_per_s"] = best;
    out["ratio"] = rate(ours) / best;
    return out;
  }

  // Adds the results of peers, and ours next to them, to a line of Measure, in turns. A connection
  // that was idle during the others' turns starts slowly: in each turn the second transfer counts.
  void Compare(uint64_t size, int rounds, const Peers& peers, nlohmann::json* line) {
    TcpTransport links(stage_.plain);
    std::vector<double> ours;
    for (int round = 0; round < rounds; ++round) {
      Pull(&links, size, false);
      ours.push_back(Seconds([&] { Pull(&links, size, false); }));
      for (const auto& peer : peers) peer->Turn(size);
    }
    for (const auto& peer : peers) peer->Tell(size, Median(ours), line);
  }

 private:
  uint64_t Next(uint64_t size) {
    if (next_ + size > copy_.size()) next_ = 0;
    return std::exchange(next_, next_ + size);
  }

  // As a rank does: by the mover, which makes two concurrent calls to a source.
  class Remote final : public Source {
   public:
    Remote(Reader* reader, Transport* transport, bool secure, uint64_t from)
        : reader_(reader), transport_(transport), from_(from) {
      peer_.set_data(fmt::format("{}:{}", kSource, reader->ports_.ours[secure ? 1 : 0]));
    }
    std::string name() const override { return peer_.data(); }
    size_t lanes() const override { return 2; }
    // Range i of a job is unit i from `from`; `wanted` is contiguous.
    Status Bring(std::span<const Range> job, std::span<const size_t> wanted, const Arrived& arrived,
                 const std::stop_token& stop) override {
      std::vector<Target> targets;
      for (const size_t i : wanted) {
        targets.push_back({job[i].units[0], reader_->stage_.hashes[from_ / kUnit + i]});
      }
      const Wish wish{from_ + wanted[0] * kUnit, wanted.size() * kUnit};
      const std::string token = reader_->Ask(wish);
      size_t next = 0;
      return transport_->Pull(peer_, token, targets, stop, [&](uint64_t) {
        arrived(wanted[next], {targets[next].hash});
        ++next;
      });
    }

   private:
    Reader* const reader_;
    Transport* const transport_;
    const uint64_t from_;
    v1::PeerAddress peer_;
  };

  std::string Ask(const Wish& wish) {
    const std::scoped_lock lock(mu_);
    Must(write(channel_, &wish, sizeof wish) == sizeof wish, "asking");
    std::string token(16, '\0');
    Must(read(channel_, token.data(), token.size()) == 16, "hearing a token");
    return token;
  }

  void Pull(Transport* transport, uint64_t size, bool secure) {
    const uint64_t from = Next(size);
    std::vector<Range> job;
    for (uint64_t at = from; at < from + size; at += kUnit) {
      job.push_back({{device::Memory::Own(std::span(&copy_[at], kUnit))}, {0}});
    }
    Remote remote(this, transport, secure, from);
    Source* const sources[] = {&remote};
    const Status status = Bring(
        job, sources, {.yields = false}, [](const auto&, size_t, const auto&) {},
        [](const auto&, const auto&) {}, {});
    Must(status.ok(), status.message());
  }

  void ReadPlainly(std::vector<std::unique_ptr<Pipe>>& pipes, uint64_t size) {
    const uint64_t from = Next(size), share = size / pipes.size();
    std::vector<std::jthread> readers;
    for (size_t i = 0; i < pipes.size(); ++i) {
      readers.emplace_back([&, i] {
        const Wish wish{from + i * share, share};
        Must(pipes[i]->Write(&wish, sizeof wish), "asking plainly");
        for (uint64_t at = wish.offset; at < wish.offset + share; at += kUnit) {
          Must(pipes[i]->Read(&copy_[at], kUnit), "reading plainly");
          Must(device::HashOf(std::span(&copy_[at], kUnit)) == stage_.hashes[at / kUnit], "a hash");
        }
      });
    }
  }

  const Stage& stage_;
  const int channel_;
  std::mutex mu_;  // one request at a time
  Ports ports_;
  std::vector<std::byte> copy_;
  uint64_t next_ = 0;
};

void PlayReader(const Stage& stage, int channel, const std::string& program, pid_t source) {
  const bool quick = std::getenv("QUICK") != nullptr && *std::getenv("QUICK") != '\0';
  Reader reader(stage, channel);
  const Peers peers = StartPeers(
      program, {fmt::format("/proc/{}/ns/net", source), kSource, kReader, stage.memory.size()});
  nlohmann::json metrics, versions = nlohmann::json::object();
  double worst = 1e9;
  for (const bool secure : {false, true}) {
    double least = 1e9;
    for (uint64_t size = kMiB; size <= kMost; size *= 4) {
      // A transfer of a millisecond depends on the scheduler, so small ones are repeated often.
      const int rounds =
          static_cast<int>((quick ? kMost : 16 * kMost) / std::max(size, 4 * kMiB)) + 3;
      nlohmann::json line = reader.Measure(size, secure, rounds);
      if (!secure && !peers.empty()) reader.Compare(size, rounds, peers, &line);
      fmt::print("{}\n", line.dump());
      least = std::min(least, line["ratio"].get<double>());
      if (size < kMost) continue;
      const std::string name = secure ? "tls" : "plain";
      metrics[name + "_gb_per_s"] = line["gb_per_s"];
      metrics[name + "_ceiling_gb_per_s"] = line["best_plain_gb_per_s"];
    }
    metrics[secure ? "tls_ratio" : "plain_ratio"] = least;
    worst = std::min(worst, least);
  }
  for (const auto& peer : peers) peer->Sum(&metrics, &versions);
  fmt::print("{}\n", nlohmann::json{{"bench", "transport"},
                                    {"value", worst},
                                    {"unit",
                                     "of the rate of a plain sender with the best of 1, 2 and 4 "
                                     "connections, worst of 1 to 64 MiB, without and with TLS"},
                                    {"ceiling", 1},
                                    {"ratio", worst},
                                    {"metrics", metrics},
                                    {"env",
                                     {{"memory_mib", stage.memory.size() / kMiB},
                                      {"cores", std::thread::hardware_concurrency()},
                                      {"peers", versions}}}}
                         .dump());
  std::fflush(stdout);
  std::exit(0);
}

// --- two hosts ---

void Run(const std::string& command) { Must(std::system(command.c_str()) == 0, command); }

// A child in a new network namespace. It continues after a write to `wire`.
pid_t Host(const std::string& name, const char* address, int ready, int wire,
           const std::function<void()>& work) {
  const pid_t pid = fork();
  Must(pid >= 0, "fork");
  if (pid > 0) return pid;
  Must(unshare(CLONE_NEWNET) == 0, "a network namespace of its own (root?)");
  char byte = 0;
  Must(write(ready, &byte, 1) == 1 && read(wire, &byte, 1) == 1, "waiting for the wire");
  Run(fmt::format("ip addr add {}/24 dev {} && ip link set lo up && ip link set {} up", address,
                  name, name));
  work();
  std::exit(0);
}

int Main(const std::string& program) {
  spdlog::set_level(
      spdlog::level::err);  // the certificates' files are gone, which is logged each second
  Stage stage;
  stage.memory.resize(MemoryBytes());
  for (size_t i = 0; i < stage.memory.size(); ++i) stage.memory[i] = std::byte(i * 31 + i / 251);
  for (size_t at = 0; at < stage.memory.size(); at += kUnit) {
    stage.hashes.push_back(device::HashOf(std::span(stage.memory).subspan(at, kUnit)));
  }
  int channel[2], ready[2], wire[2];
  Must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel) == 0 && pipe(ready) == 0 && pipe(wire) == 0,
       "pipes");
  const pid_t source =
      Host("tg-source", kSource, ready[1], wire[0], [&] { PlaySource(stage, channel[0]); });
  const pid_t reader = Host("tg-reader", kReader, ready[1], wire[0],
                            [&] { PlayReader(stage, channel[1], program, source); });
  char bytes[2] = {};
  for (char& byte : bytes) Must(read(ready[0], &byte, 1) == 1, "a host that did not come up");
  Run(fmt::format("ip link add tg-source netns {} type veth peer name tg-reader netns {}", source,
                  reader));
  Must(write(wire[1], bytes, 2) == 2, "the wire");
  int status = 0;
  Must(waitpid(reader, &status, 0) == reader, "waiting for the reader");
  kill(source, SIGTERM);
  waitpid(source, nullptr, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace tangram::mover

int main(int argc, char** argv) { return tangram::mover::Main(argc > 1 ? argv[1] : ""); }
