// tangram-copy: the maximum rate at which a reader can copy another process's memory. Units are
// copied from memory that is mapped by a descriptor to own memory, and hashed in the same pass, by
// 1 thread, 2, and one per core. Both memories are populated before the clock starts.
//
//   tangram-copy UNIT_BYTES TOTAL_BYTES ROUNDS [huge]
//   tangram-copy rows HIDDEN INNER RANKS TOTAL_BYTES ROUNDS [huge]
//
// One JSON object: GB/s of the median round of the best number of threads, and seconds of mapping.
// `rows`: shards of row-major experts, packed, copied and unpacked (staged_copy.h), by way of
// buffers for all of them, and for few enough that they stay in a cache.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/device/platform.h"
#include "agent/mover/peer_memory.h"
#include "agent/mover/staged_copy.h"

namespace tangram::mover {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "tangram-copy: %s\n", result.status().message().c_str());
  std::exit(1);
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A rank's memory of weights, with every byte written.
struct Owned {
  device::RankDevices devices;
  device::SpacePtr space;
  device::Mapping mapping;
  device::Memory memory;

  Owned(const device::Platform& platform, uint64_t bytes, std::byte value)
      : devices(Must(platform.Make("copy", {.weights = bytes, .kv = 2 << 20, .control = 4096}))) {
    std::tie(space, mapping) = Must(device::MapWhole(*devices.weights));
    memory = {devices.weights.get(), space->address(), bytes};
    std::ranges::fill(device::View(memory), value);
  }
};

struct Best {
  double gb_per_s = 0;
  unsigned threads = 0;
};

// `seconds` runs a round with this many threads.
Best BestOf(uint64_t bytes, int rounds, const std::function<double(unsigned threads)>& seconds) {
  Best out;
  for (const unsigned threads : std::set<unsigned>{1, 2, std::thread::hardware_concurrency()}) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) times.push_back(seconds(threads));
    std::sort(times.begin(), times.end());
    const double rate = static_cast<double>(bytes) / times[times.size() / 2] / 1e9;
    if (rate > out.gb_per_s) out = {rate, threads};
  }
  return out;
}

void Print(const nlohmann::json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// All of the source's memory, in one descriptor.
std::shared_ptr<PeerMemory> Shown(const device::Platform& platform, int descriptor,
                                  uint64_t bytes) {
  auto peer = Must(PeerMemory::Of(std::move(platform.Importers().weights), bytes, bytes));
  if (!peer->Give(0, descriptor).ok()) std::exit(1);
  return peer;
}

void ReadRows(const device::Platform& platform, int descriptor, uint64_t bytes,
              const StagedShape& shape, int rounds) {
  constexpr uint64_t kInCache = 1 << 20;  // both buffers
  const std::shared_ptr<PeerMemory> peer = Shown(platform, descriptor, bytes);
  const uint64_t experts = bytes / shape.expert_bytes();
  const device::Memory from = Must(peer->At({0, experts * shape.expert_bytes()}));
  const uint64_t mine = ShardBytes(shape, from);
  const Owned to(platform, mine, std::byte{2});
  const auto best = [&](uint64_t at_once) {
    uint64_t rank = 0;
    return BestOf(mine, rounds, [&](unsigned threads) {
      return StagedCopy(shape, rank++ % shape.ranks, from, to.memory, at_once, threads);
    });
  };
  const Best whole = best(0);
  const Best blocked = best(std::max<uint64_t>(1, kInCache / 2 * experts / mine));
  Print({{"staged_gb_per_s", whole.gb_per_s},
         {"staged_threads", whole.threads},
         {"blocked_gb_per_s", blocked.gb_per_s},
         {"blocked_threads", blocked.threads}});
}

void Read(const device::Platform& platform, int descriptor, uint64_t unit, uint64_t bytes,
          int rounds) {
  const Owned to(platform, bytes, std::byte{2});
  device::Memory from;
  std::shared_ptr<PeerMemory> peer = Shown(platform, descriptor, bytes);
  const double mapping = Seconds([&] { from = Must(peer->At({0, bytes})); });
  const auto copy = [&](uint64_t first, uint64_t stride) {
    uint64_t hash = 0;
    for (uint64_t at = first * unit; at < bytes; at += stride * unit) {
      const device::CopyOp op{to.memory.Part(at, unit), from.Part(at, unit), &hash};
      if (!to.memory.device->Copy({&op, 1}).Wait().ok()) std::exit(1);
    }
  };
  const Best best = BestOf(bytes, rounds, [&](unsigned threads) {
    return Seconds([&] {
      std::vector<std::jthread> all;
      for (unsigned t = 0; t < threads; ++t) all.emplace_back(copy, t, threads);
    });
  });
  const double unmapping = Seconds([&] { peer.reset(); });
  Print({{"gb_per_s", best.gb_per_s},
         {"threads", best.threads},
         {"map_gb_per_s", static_cast<double>(bytes) / mapping / 1e9},
         {"unmap_gb_per_s", static_cast<double>(bytes) / unmapping / 1e9}});
}

// `shape`: of experts; null: plain units.
int Main(const StagedShape* shape, uint64_t unit, uint64_t bytes, int rounds, bool huge) {
  const bool rows_fit = shape == nullptr ||
                        (shape->ranks > 0 && shape->hidden > 0 && shape->inner % shape->ranks == 0);
  if (unit == 0 || unit % 4096 != 0 || bytes < unit || rounds < 1 || !rows_fit) {
    std::fprintf(stderr,
                 "usage: tangram-copy UNIT_BYTES TOTAL_BYTES ROUNDS [huge] (units of whole 4 KiB)\n"
                 "       tangram-copy rows HIDDEN INNER RANKS TOTAL_BYTES ROUNDS [huge] (experts "
                 "of whole 4 KiB, INNER a multiple of RANKS)\n");
    return 2;
  }
  constexpr uint64_t kHuge = 2 << 20;
  bytes = std::lcm(unit, kHuge) * (bytes / std::lcm(unit, kHuge) + 1);
  const auto platform =
      Must(device::MakePlatform({.map_bytes = huge ? kHuge : 4096, .hugetlb = huge}));
  const Owned source(*platform, bytes, std::byte{1});
  const pid_t reader = fork();
  if (reader == 0) {
    const SharedFd shown = Must(Must(source.devices.weights->ForReading()).descriptor(0));
    const int descriptor = shown->get();
    if (shape != nullptr) {
      ReadRows(*platform, descriptor, bytes, *shape, rounds);
    } else {
      Read(*platform, descriptor, unit, bytes, rounds);
    }
    std::_Exit(0);
  }
  int status = 0;
  return reader > 0 && waitpid(reader, &status, 0) == reader && WIFEXITED(status)
             ? WEXITSTATUS(status)
             : 1;
}

}  // namespace
}  // namespace tangram::mover

int main(int argc, char** argv) {
  using tangram::mover::Main;
  const bool huge = argc > 1 && std::string(argv[argc - 1]) == "huge";
  if (huge) --argc;
  const bool rows = argc > 1 && std::string(argv[1]) == "rows";
  if (argc != (rows ? 7 : 4)) return Main(nullptr, 0, 0, 0, false);
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (!rows) return Main(nullptr, number(1), number(2), std::atoi(argv[3]), huge);
  const tangram::mover::StagedShape shape{number(2), number(3), number(4)};
  return Main(&shape, shape.expert_bytes(), number(5), std::atoi(argv[6]), huge);
}
