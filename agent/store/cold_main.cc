// tangram-cold-start: compares the speed of a world's first layout from the checkpoint with as many
// threads that read the same files from the page cache and hash them. Ranks are RankStores, in one
// agent or each in its own; agents exchange bytes over TLS on loopback. The loader and the kernel
// (/proc/self/io) count the bytes read from files. One JSON object per case, then the summary.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "agent/device/hash.h"
#include "agent/loader/testing/large.h"
#include "agent/mover/data_server.h"
#include "agent/mover/tcp_transport.h"
#include "agent/net/testing/certs.h"
#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

using loader::testing::ModelShape;
using nlohmann::json;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kRanks = 4, kGranuleRows = 96;
constexpr uint64_t kPage = 4096;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "tangram-cold-start: %s\n", what.c_str());
  std::exit(1);
}

void Must(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) Fail(result.status().message());
  return std::move(result).value();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Bytes returned by read calls of this process, from files and sockets alike.
uint64_t KernelReads() {
  std::ifstream file("/proc/self/io");
  std::string word;
  uint64_t bytes = 0;
  while (file >> word) {
    if (word == "rchar:" && file >> bytes) return bytes;
  }
  return 0;
}

// --- the checkpoint ------------------------------------------------------------------------------

// Qwen3-30B-A3B's layers, with the share of dense weights that all 48 of them would have (5 %).
ModelShape Shape(bool quick) {
  ModelShape shape;
  shape.layers = quick ? 1 : 2;
  shape.hidden = 2048;
  shape.moe_inner = 768;
  shape.experts = quick ? 32 : 128;
  shape.top_k = 8;
  shape.query_heads = quick ? 8 : 32;
  shape.kv_heads = quick ? 1 : 4;
  shape.head_dim = 128;
  shape.vocab = quick ? 800 : 6400;
  return shape;
}

// Brings every page of the files into the page cache, or drops all.
void Cache(const std::vector<std::string>& files, bool warm) {
  std::vector<char> buffer(4 * kMiB);
  for (const std::string& path : files) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) Fail("cannot open " + path);
    if (!warm) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    while (warm && read(fd, buffer.data(), buffer.size()) > 0) {
    }
    close(fd);
  }
}

// --- the ceiling ---------------------------------------------------------------------------------

struct Times {
  double seconds = 0, cpu = 0;  // CPU time, of all threads
};

Times Timed(const std::function<void()>& work) {
  const double cpu = CpuSeconds();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const auto end = std::chrono::steady_clock::now();
  return {std::chrono::duration<double>(end - begin).count(), CpuSeconds() - cpu};
}

// Threads that read the files from end to end into existing memory, and hash the bytes in blocks
// that fit the caches.
class Ceiling {
 public:
  explicit Ceiling(std::vector<std::string> files) : files_(std::move(files)) {
    uint64_t bytes = 0;
    for (const std::string& path : files_) {
      sizes_.push_back(std::filesystem::file_size(path));
      bytes += sizes_.back();
    }
    const auto platform = Must(device::MakePlatform({}));
    devices_ = Must(platform->Make("ceiling", {.weights = bytes, .kv = kPage, .control = kPage}));
    auto [space, mapping] = Must(device::MapWhole(*devices_.weights));
    memory_ = device::View({devices_.weights.get(), space->address(), bytes});
    mapping_ = std::move(mapping);
    std::memset(memory_.data(), 1, bytes);
  }

  uint64_t bytes() const { return memory_.size(); }

  Times Run(uint32_t threads) {
    constexpr uint64_t kPiece = kMiB, kStretch = 8 * kMiB;
    struct Stretch {
      size_t file;
      uint64_t offset, bytes;
      std::byte* to;
    };
    std::vector<Stretch> stretches;
    std::byte* to = memory_.data();
    for (size_t f = 0; f < files_.size(); ++f) {
      for (uint64_t at = 0; at < sizes_[f]; at += kStretch) {
        stretches.push_back({f, at, std::min(kStretch, sizes_[f] - at), to});
        to += stretches.back().bytes;
      }
    }
    std::vector<int> fds;
    for (const std::string& path : files_) fds.push_back(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> hashes{0};
    const Times out = Timed([&] {
      std::vector<std::jthread> workers;
      for (uint32_t t = 0; t < threads; ++t) {
        workers.emplace_back([&] {
          for (size_t i = next++; i < stretches.size(); i = next++) {
            const Stretch& s = stretches[i];
            for (uint64_t at = 0; at < s.bytes; at += kPiece) {
              const uint64_t want = std::min(kPiece, s.bytes - at);
              if (pread(fds[s.file], s.to + at, want, static_cast<off_t>(s.offset + at)) !=
                  static_cast<ssize_t>(want)) {
                Fail("reading " + files_[s.file]);
              }
              hashes ^= device::HashOf({reinterpret_cast<const std::byte*>(s.to + at), want});
            }
          }
        });
      }
    });
    for (const int fd : fds) close(fd);
    return out;
  }

 private:
  const std::vector<std::string> files_;
  std::vector<uint64_t> sizes_;
  device::RankDevices devices_;
  device::Mapping mapping_;
  std::span<std::byte> memory_;
};

// --- the world -----------------------------------------------------------------------------------

struct Case {
  const char* name;
  uint32_t agents;
  bool tensor;
  bool cold = false;
  v1::SlabFormat format = v1::SLAB_FORMAT_GRANULE_MAJOR;
};

v1::Layout LayoutOf(const layout::GeometryView& geometry, bool tensor) {
  v1::Layout out;
  out.set_world("cold");
  out.set_epoch(1);
  out.set_geometry_fingerprint(geometry.fingerprint());
  out.set_banks(geometry.moe_layers() + 1);
  for (uint32_t r = 0; r < kRanks; ++r) {
    out.add_members()->set_id(fmt::format("cold-{}/0/1", r));
    out.mutable_dense()->add_ranks(r);
  }
  for (uint32_t l = 0; l < geometry.proto().layers(); ++l) {
    v1::LayerLayout& layer = *out.add_layers();
    layer.set_layer(l);
    layer.set_expert_group_size(tensor ? kRanks : 1);
    const uint32_t groups = tensor ? 1 : kRanks, each = geometry.experts() / groups;
    for (uint32_t g = 0; g < groups; ++g) {
      v1::ExpertGroup& group = *layer.add_experts();
      for (uint32_t p = 0; p < kRanks / groups; ++p) group.add_ranks(tensor ? p : g);
      for (uint32_t e = 0; e < each; ++e) group.add_slots(g * each + e + 1);
    }
    layer.set_attention_group_size(1);
    for (uint32_t r = 0; r < kRanks; ++r) {
      v1::AttentionGroup& attention = *layer.add_attention();
      attention.add_ranks(r);
      attention.add_query_head_bounds(0);
      attention.add_query_head_bounds(geometry.proto().query_heads());
    }
  }
  return out;
}

// As in the planner's first flip: every piece comes from the checkpoint; each part of the dense
// weights is read by one rank, in turn.
v1::RankPart PartOf(const layout::GeometryView& geometry, const v1::Layout& to, uint32_t rank) {
  v1::RankPart part;
  part.set_rank(rank);
  const auto pieces = layout::PiecesOf(to, geometry, rank);
  v1::Fetches& fetches = *part.mutable_fetches();
  for (const layout::PlacedPiece& piece : pieces) {
    fetches.add_layer(piece.layer);
    fetches.add_expert(piece.expert);
    fetches.add_granule_start(piece.run.start);
    fetches.add_granule_count(piece.run.count);
    fetches.add_source(0);
  }
  for (uint32_t i = 0; i < kDenseParts; ++i) {
    const uint32_t reader = i % kRanks;
    part.mutable_dense()->add_source_by_part(reader == rank ? 0 : reader + 1);
  }
  const uint64_t bytes = layout::PagesTouched(pieces, geometry) * kPage +
                         layout::RoundUp(geometry.proto().dense_bytes(), kPage);
  part.set_peak_bytes(bytes);
  part.set_steady_bytes(bytes);
  return part;
}

struct Agent {
  std::shared_ptr<const loader::Checkpoint> checkpoint;
  mover::Grants grants;
  std::shared_ptr<mover::Transports> transports;
  std::shared_ptr<loader::SharedReads> reads;
  std::vector<std::unique_ptr<RankStore>> stores;
  std::unique_ptr<mover::DataServer> server;  // destroyed before the memory that it reads
};

class World {
 public:
  World(const std::string& directory, uint32_t agents, bool tensor, v1::SlabFormat format) {
    static const net::testing::TestCa ca;
    const auto credentials = ca.Open("cold", "agent", "pod");
    const std::shared_ptr<const device::Platform> platform = Must(device::MakePlatform({}));
    for (uint32_t a = 0; a < agents; ++a) {
      Agent& agent = *agents_.emplace_back(std::make_unique<Agent>());
      agent.checkpoint = Must(loader::Checkpoint::Open(directory, kGranuleRows, kPage, format));
      std::vector<std::unique_ptr<mover::Transport>> ways;
      ways.push_back(std::make_unique<mover::TcpTransport>(credentials));
      agent.transports = std::make_shared<mover::Transports>(std::move(ways));
      agent.reads = std::make_shared<loader::SharedReads>(agent.checkpoint);
      agent.server = Must(mover::DataServer::Start(
          {.listen = "127.0.0.1:0", .credentials = credentials}, &agent.grants));
    }
    layout_ = LayoutOf(geometry(), tensor);
    for (uint32_t r = 0; r < kRanks; ++r) {
      parts_.push_back(PartOf(geometry(), layout_, r));
      Agent& agent = AgentOf(r);
      RankStore::Options options;
      options.member = layout_.members(static_cast<int>(r)).id();
      options.checkpoint = agent.checkpoint;
      options.platform = platform;
      options.revision = "r1";
      options.banks = layout_.banks();
      options.pool_bytes = parts_.back().peak_bytes();
      options.kv_bytes = options.control_bytes = kPage;
      options.hashes_file = fmt::format("{}/hashes-{}", directory, r);
      options.grants = &agent.grants;
      options.transports = agent.transports;
      options.reads = agent.reads;
      options.load_threads = 1;
      options.opener = [this](const std::string&, const v1::OpenPullRequest& request,
                              const std::stop_token&) {
        return StoreOf(request.rank()).OpenPull(request, "pod");
      };
      options.sibling = [&agent](const std::string& id) -> RankStore* {
        for (const auto& store : agent.stores) {
          if (store->member() == id) return store.get();
        }
        return nullptr;
      };
      agent.stores.push_back(Must(RankStore::Create(std::move(options))));
    }
  }
  ~World() {
    for (const auto& agent : agents_) agent->server.reset();
  }

  struct Figures {
    Times times, preparing;
    uint64_t read = 0, calls = 0, kernel = 0, from_peers = 0;
  };

  // Loads the first layout, and releases everything.
  Figures Load(bool check) {
    ++attempt_;
    Figures out;
    v1::Header header;
    header.set_attempt(attempt_);
    Origins origins;
    for (uint32_t r = 0; r < kRanks; ++r) {
      v1::PeerAddress& peer = origins.peers.emplace_back();
      peer.set_rank(r);
      peer.set_member(layout_.members(static_cast<int>(r)).id());
      peer.set_data(fmt::format("127.0.0.1:{}", AgentOf(r).server->port()));
    }
    // Also maps the ranks' pages.
    out.preparing = Timed([&] {
      for (uint32_t r = 0; r < kRanks; ++r) {
        Must(StoreOf(r).Prepare(attempt_, layout_, static_cast<int32_t>(r), parts_[r]));
      }
    });
    const auto before = Reads();
    const uint64_t kernel = KernelReads();
    std::vector<StageProgress> progress(kRanks);
    out.times = Timed([&] {
      std::vector<std::jthread> ranks;
      for (uint32_t r = 0; r < kRanks; ++r) {
        ranks.emplace_back([&, r] { Must(StoreOf(r).Stage(header, origins, &progress[r], {})); });
      }
    });
    out.kernel = KernelReads() - kernel;
    out.read = Reads().bytes - before.bytes;
    out.calls = Reads().calls - before.calls;
    for (const StageProgress& each : progress) out.from_peers += each.shared + each.tcp;
    if (check) Check();
    for (uint32_t r = 0; r < kRanks; ++r) StoreOf(r).Abort();
    for (const auto& agent : agents_) agent->transports->EndAttempt();
    return out;
  }

  // Bytes of the files without headers.
  uint64_t TensorBytes() const {
    const v1::Geometry& g = geometry().proto();
    uint64_t bytes = uint64_t{geometry().moe_layers()} * g.experts() * geometry().expert_bytes();
    for (const loader::DenseTensor& tensor : agents_[0]->checkpoint->dense()) {
      bytes += tensor.info.bytes;
    }
    return bytes;
  }

 private:
  const layout::GeometryView& geometry() const { return agents_[0]->checkpoint->geometry(); }
  Agent& AgentOf(uint32_t rank) { return *agents_[rank * agents_.size() / kRanks]; }
  RankStore& StoreOf(uint32_t rank) {
    return *AgentOf(rank).stores[rank % (kRanks / agents_.size())];
  }
  loader::Checkpoint::Reads Reads() const {
    loader::Checkpoint::Reads out;
    for (const auto& agent : agents_) {
      out.calls += agent->checkpoint->reads().calls;
      out.bytes += agent->checkpoint->reads().bytes;
    }
    return out;
  }

  // Checks that random granules are at their places, each once in the world. (Tests of the loader
  // check that it reads the files correctly.)
  void Check() {
    std::mt19937_64 random(attempt_);
    const v1::Geometry& g = geometry().proto();
    std::vector<std::byte> whole(geometry().expert_bytes());
    for (int i = 0; i < 16; ++i) {
      const auto expert = static_cast<uint32_t>(random() % g.experts());
      const uint32_t layer = g.moe_layers(static_cast<int>(random() % geometry().moe_layers()));
      Must(agents_[0]->checkpoint->ReadGranules(layer, expert, {0, geometry().granules()}, whole));
      uint32_t found = 0;
      for (uint32_t granule = 0; granule < geometry().granules(); ++granule) {
        for (uint32_t r = 0; r < kRanks; ++r) {
          const device::Memory held = StoreOf(r).Granule(layer, expert, granule);
          if (held.bytes == 0) continue;
          ++found;
          std::vector<std::byte> bytes(held.bytes);
          const device::CopyOp copy{device::Memory::Own(bytes), held};
          Must(held.device->Copy({&copy, 1}).Wait());
          if (std::memcmp(bytes.data(), &whole[granule * bytes.size()], bytes.size()) != 0) {
            Fail(fmt::format("layer {}, expert {}, granule {} is wrong", layer, expert, granule));
          }
        }
      }
      if (found != geometry().granules()) Fail("a granule is nowhere");
    }
  }

  std::vector<std::unique_ptr<Agent>> agents_;
  v1::Layout layout_;
  std::vector<v1::RankPart> parts_;
  uint64_t attempt_ = 0;
};

int Main() {
  spdlog::set_level(spdlog::level::err);  // stdout is for the figures
  const bool quick = std::getenv("QUICK") != nullptr && *std::getenv("QUICK") != '\0';
  const int rounds = quick ? 3 : 15;
  const loader::testing::TempDir directory;
  const std::vector<std::string> files =
      loader::testing::WriteLarge(directory.path(), Shape(quick));
  Ceiling ceiling(files);
  constexpr v1::SlabFormat kRows = v1::SLAB_FORMAT_ROW_MAJOR;
  double worst_bytes = 0, worst_kernel = 0;
  std::map<v1::SlabFormat, double> worst_rate;  // of one agent, from the page cache
  for (const Case& c :
       {Case{"experts, one agent", 1, false}, Case{"tensor, one agent", 1, true},
        Case{"experts, an agent each", kRanks, false}, Case{"tensor, an agent each", kRanks, true},
        Case{"experts, cold disk", 1, false, true}, Case{"tensor, cold disk", 1, true, true},
        Case{"experts, row-major", 1, false, false, kRows},
        Case{"tensor, row-major", 1, true, false, kRows}}) {
    World world(directory.path(), c.agents, c.tensor, c.format);
    std::vector<double> seconds, cpu, plain_seconds, plain_cpu, work, wall;
    World::Figures last;
    Cache(files, true);
    for (int round = 0; round < rounds; ++round) {
      if (c.cold) Cache(files, false);
      const Times plain = ceiling.Run(kRanks);
      if (c.cold) Cache(files, false);
      last = world.Load(round == 0);
      // Bytes received by the ranks per byte read.
      const double bytes =
          static_cast<double>(last.read + last.from_peers) / static_cast<double>(ceiling.bytes());
      work.push_back(bytes * plain.cpu / last.times.cpu);
      wall.push_back(bytes * plain.seconds / last.times.seconds);
      seconds.push_back(last.times.seconds);
      cpu.push_back(last.times.cpu);
      plain_seconds.push_back(plain.seconds);
      plain_cpu.push_back(plain.cpu);
    }
    const auto tensors = static_cast<double>(world.TensorBytes());
    const auto rate = [&](uint64_t bytes, const std::vector<double>& times) {
      return static_cast<double>(bytes) / Median(times) / 1e9;
    };
    const json line = {{"case", c.name},
                       {"ranks", kRanks},
                       {"agents", c.agents},
                       {"checkpoint_mib", ceiling.bytes() / kMiB},
                       {"from_peers_mib", last.from_peers / kMiB},
                       {"read_over_tensors", static_cast<double>(last.read) / tensors},
                       {"kernel_over_tensors", static_cast<double>(last.kernel) / tensors},
                       {"reads", last.calls},
                       {"seconds", Median(seconds)},
                       {"cpu_seconds", Median(cpu)},
                       {"plain_seconds", Median(plain_seconds)},
                       {"plain_cpu_seconds", Median(plain_cpu)},
                       {"prepare_cpu_seconds", last.preparing.cpu},
                       {"gb_per_s", rate(last.read + last.from_peers, seconds)},
                       {"plain_gb_per_s", rate(ceiling.bytes(), plain_seconds)},
                       {"over_plain", Median(work)},
                       {"over_plain_wall", Median(wall)}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    worst_bytes = std::max(worst_bytes, static_cast<double>(last.read) / tensors);
    worst_kernel = std::max(worst_kernel, static_cast<double>(last.kernel) / tensors);
    if (c.cold || c.agents > 1) continue;
    const auto [worst, first] = worst_rate.emplace(c.format, Median(work));
    if (!first) worst->second = std::min(worst->second, Median(work));
  }
  const json summary = {
      {"bench", "cold-start"},
      {"value", worst_bytes},
      {"unit", "bytes read over bytes of the checkpoint, for the world"},
      {"metrics",
       {{"kernel_over_checkpoint", worst_kernel},
        {"rate_over_plain", worst_rate.at(kRows)},
        {"granule_major_over_plain", worst_rate.at(v1::SLAB_FORMAT_GRANULE_MAJOR)}}}};
  std::printf("%s\n", summary.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tangram::store

int main() { return tangram::store::Main(); }
