// wire-agent: an agent's mover as a separate process, for tests: memory with a pattern, a data
// port, comm channels. Each line on stdin is a command; each reply is one line on stdout.
//
//   grant POD            -> token HEX HASH...          units of the weights, for that pod
//   grantkv POD          -> token HEX
//   pull PORT KIND SEED TOKEN HASH... -> WAY BYTES ok | WAY BYTES failed: why
//   kv PORT KIND SEED TOKEN           -> WAY ok | WAY failed: why
//   end                  -> ended                      ends the leases of all grants
//   close                -> closed                     ends an attempt
//   look                 -> sessions N batches N most N open N hangs N complaint WORDS
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <sstream>

#include "agent/device/hash.h"
#include "agent/device/platform.h"
#ifdef TANGRAM_FAKE_NCCL
#include "agent/device/testing/fake_nccl.h"
#endif
#include "agent/mover/kv_source.h"
#include "agent/mover/tcp_transport.h"
#include "agent/mover/testing.h"
#include "agent/mover/wire_server.h"
#include "agent/mover/wire_transport.h"

namespace tangram::mover {
namespace {

constexpr uint64_t kUnit = 300'000, kUnits = 12, kWeights = 4 << 20, kKv = 2 << 20;

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "wire-agent: %s\n", result.status().message().c_str());
  std::exit(1);
}

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}
std::string Bytes(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

#ifdef TANGRAM_FAKE_NCCL
// The steady clock, plus an hour for each kernel of this process that hangs. So every limit expires
// then, and none before.
class HangTime final : public TimeSource {
 public:
  TimePoint Now() const override {
    return SteadyTime().Now() + std::chrono::hours(device::testing::FakeNccl::Hangs());
  }
  int Poll(pollfd* fds, nfds_t count, int timeout_ms) override {
    return SteadyTime().Poll(fds, count, timeout_ms);
  }
};
#endif

class WireAgent {
 public:
  explicit WireAgent(std::map<std::string, std::string> told) : told_(std::move(told)) {
    const std::string dir = told_.at("dir"), pod = told_.at("pod");
    if (!fault::Arm(told_.at("faults")).ok()) std::exit(1);
    fault::Follow(told_.at("points"));
    credentials_ = Must(net::Credentials::Open({.ca = dir + "/" + pod + ".ca",
                                                .cert = dir + "/" + pod + ".crt",
                                                .key = dir + "/" + pod + ".key"},
                                               "w", "agent"));
    platform_ = Must(device::MakePlatform(
        {.name = told_.at("platform"), .map_bytes = 2 << 20, .driver = told_.at("driver")}));
    owned_ = Must(platform_->Make(pod, {.weights = kWeights, .kv = kKv, .control = 4096}));
    const auto seed = static_cast<unsigned>(std::stoul(told_.at("seed")));
    weights_ = Fill(owned_.weights.get(), seed);
    kv_ = Fill(owned_.kv.get(), seed + 100);
    copy_ = MapTarget();
    WirePatience patience;
    patience.bytes = std::chrono::milliseconds(std::stoi(told_.at("patience")));
    patience.connect = patience.kv = patience.bytes;
    patience.turn = 4 * patience.bytes;
#ifdef TANGRAM_FAKE_NCCL
    static HangTime time;
    if (told_.at("clock") == "hangs") patience.time = &time;
#endif
    wires_ = Must(platform_->OpenWires({.name = told_.at("wire"),
                                        .library = told_.at("library"),
                                        .buffer_bytes = std::stoull(told_.at("buffer"))}));
    const auto turns = std::make_shared<Turns>();
    wire_server_ = std::make_unique<WireServer>(
        WireServer::Options{.wires = wires_, .turns = turns, .patience = patience}, &grants_);
    server_ = Must(DataServer::Start(
        {.listen = "127.0.0.1:0",
         .credentials = credentials_,
         .wires = [this](std::unique_ptr<net::Stream> s) { wire_server_->Take(std::move(s)); }},
        &grants_));
    std::vector<std::unique_ptr<Transport>> ways;
    ways.push_back(std::make_unique<WireTransport>(wires_, turns, credentials_, patience));
    ways.push_back(std::make_unique<TcpTransport>(credentials_));
    transports_ = std::make_unique<Transports>(std::move(ways));
  }
  ~WireAgent() {
    server_.reset();
    wire_server_.reset();
    transports_->EndAttempt();
  }

  std::string Ready() const { return fmt::format("ready {} {}", server_->port(), Kind()); }

  std::string Do(std::istringstream words) {
    std::string what;
    words >> what;
    if (what == "grant" || what == "grantkv") return Give(what == "grantkv", words);
    if (what == "pull" || what == "kv") return Bring(what == "kv", words);
    if (what == "close") {
      transports_->EndAttempt();
      return "closed";
    }
    if (what == "look") return Look();
    if (what == "end") {
      lease_->End();
      return "ended";
    }
    return "what?";
  }

 private:
  // As one word.
  std::string Kind() const {
    std::string out = wires_->kind();
    std::replace(out.begin(), out.end(), ' ', '_');
    return out;
  }

  device::Memory Map(device::Device* device) {
    auto [space, mapping] = Must(device::MapWhole(*device));
    const device::Memory memory{device, space->address(), device->total_bytes()};
    mappings_.push_back(std::move(mapping));
    return memory;
  }
  device::Memory Fill(device::Device* device, unsigned seed) {
    const device::Memory memory = Map(device);
    auto bytes = testing::Pattern(memory.bytes, seed);
    const device::CopyOp op{memory, device::Memory::Own(bytes)};
    if (!device->Copy({&op, 1}).Wait().ok()) std::exit(1);
    return memory;
  }
  device::Memory MapTarget() {
    target_ = Must(platform_->Make("target", {.weights = kWeights, .kv = kKv, .control = 4096}));
    kv_copy_ = Map(target_.kv.get());
    return Map(target_.weights.get());
  }

  std::string Give(bool kv, std::istringstream& words) {
    Grant grant;
    words >> grant.pod;
    grant.lease = lease_;
    if (kv) {
      grant.kv = kv_;
      return "token " + Hex(grants_.Issue(std::move(grant)));
    }
    std::string hashes;
    for (uint64_t u = 0; u < kUnits; ++u) {
      const device::Memory unit = weights_.Part(u * 7 % kUnits * kUnit, kUnit);
      uint64_t hash = 0;
      if (!device::HashNow(unit, &hash).ok()) return "no hash";
      hashes += fmt::format(" {}", hash);
      grant.pieces.push_back(unit);
    }
    return "token " + Hex(grants_.Issue(std::move(grant))) + hashes;
  }

  std::string Bring(bool kv, std::istringstream& words) {
    std::string port, kind, token;
    unsigned seed = 0;
    words >> port >> kind >> seed >> token;
    v1::PeerAddress peer;
    peer.set_data("127.0.0.1:" + port);
    std::replace(kind.begin(), kind.end(), '_', ' ');
    peer.set_comm_library(kind);
    Transport& way = transports_->For(peer);
    uint64_t bytes = 0;
    Status status;
    if (kv) {
      status = Kv(way, peer, Bytes(token), seed + 100);
    } else {
      std::vector<Target> targets;
      uint64_t hash = 0;
      for (uint64_t u = 0; words >> hash; ++u) {
        targets.push_back({copy_.Part(u * (kUnit + 1000), kUnit), hash});
      }
      status = way.Pull(peer, Bytes(token), targets, {}, [&](uint64_t n) { bytes += n; });
      if (status.ok()) status = Same(seed);
    }
    if (!status.ok()) transports_->Failed(way, peer);
    return fmt::format("{} {} {}", way.name(), bytes,
                       status.ok() ? "ok" : "failed: " + status.message());
  }

  static std::vector<std::byte> Read(const device::Memory& memory) {
    std::vector<std::byte> out(memory.bytes);
    const device::CopyOp op{device::Memory::Own(out), memory};
    if (!memory.device->Copy({&op, 1}).Wait().ok()) std::exit(1);
    return out;
  }
  Status Same(unsigned seed) const {
    const auto pattern = testing::Pattern(kWeights, seed);
    for (uint64_t u = 0; u < kUnits; ++u) {
      const auto came = Read(copy_.Part(u * (kUnit + 1000), kUnit));
      if (!std::equal(came.begin(), came.end(),
                      pattern.begin() + static_cast<std::ptrdiff_t>(u * 7 % kUnits * kUnit))) {
        return {Code::kCorrupt, fmt::format("unit {} has other bytes", u)};
      }
    }
    return OkStatus();
  }

  Status Kv(Transport& way, const v1::PeerAddress& peer, const std::string& token, unsigned seed) {
    auto channel = way.OpenKv(peer, token, {});
    if (!channel.ok()) return channel.status();
    const auto pattern = testing::Pattern(kKv, seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 3; ++round) {
      std::vector<KvRange> ranges;
      uint64_t at = 0;
      for (int i = 0; i < 50; ++i) {
        const uint64_t bytes = 1 + random() % 20'000;
        ranges.push_back({random() % (kKv - bytes), kv_copy_.Part(at, bytes)});
        at += bytes;
      }
      TANGRAM_RETURN_IF_ERROR((*channel)->Read(ranges, false, {}));
      for (const KvRange& range : ranges) {
        const auto came = Read(range.to);
        if (!std::equal(came.begin(), came.end(),
                        pattern.begin() + static_cast<std::ptrdiff_t>(range.source_offset))) {
          return {Code::kCorrupt, "a range of KV has other bytes"};
        }
      }
    }
    return OkStatus();
  }

  std::string Look() const {
    std::string complaint;
    uint64_t most = 0, open = 0, hangs = 0;
#ifdef TANGRAM_FAKE_NCCL
    if (told_.at("wire") == "nccl") {
      complaint = device::testing::FakeNccl::Complaint();
      most = device::testing::FakeNccl::MostAtOnce();
      open = device::testing::FakeNccl::Open();
      hangs = device::testing::FakeNccl::Hangs();
    }
#endif
    return fmt::format("sessions {} batches {} most {} open {} hangs {} complaint {}",
                       wire_server_->sessions(), wire_server_->batches(), most, open, hangs,
                       complaint);
  }

  const std::map<std::string, std::string> told_;
  std::shared_ptr<net::Credentials> credentials_;
  std::unique_ptr<device::Platform> platform_;
  device::RankDevices owned_, target_;
  std::vector<device::Mapping> mappings_;
  device::Memory weights_, kv_, copy_, kv_copy_;
  std::shared_ptr<Lease> lease_ = std::make_shared<Lease>();
  Grants grants_;
  std::shared_ptr<device::Wires> wires_;
  std::unique_ptr<WireServer> wire_server_;
  std::unique_ptr<DataServer> server_;
  std::unique_ptr<Transports> transports_;
};

}  // namespace
}  // namespace tangram::mover

// wire-agent NAME=VALUE...
int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("wire-agent"));
  std::map<std::string, std::string> told{{"platform", "cuda"},   {"wire", "nccl"},
                                          {"patience", "600000"}, {"buffer", "1000000"},
                                          {"seed", "1"},          {"driver", "libcuda.so.1"},
                                          {"library", ""},        {"faults", ""},
                                          {"points", ""},         {"clock", "steady"}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    told[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  tangram::mover::WireAgent agent(told);
  std::cout << agent.Ready() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << agent.Do(std::istringstream(line)) << std::endl;
  }
}
