// tangram-copy: the ceiling of what a reader can get out of another process's memory: units copied
// from memory that is mapped from a descriptor to memory of our own, each hashed on the same pass,
// by 1 thread, 2, and as many as there are cores. Both memories are in place before the clock
// starts.
//
//   tangram-copy UNIT_BYTES TOTAL_BYTES ROUNDS [huge]
//
// One JSON object: GB/s of the median round of the best number of threads, and seconds of mapping.
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

// A rank's memory of weights, every byte written.
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

void Read(const device::Platform& platform, int descriptor, uint64_t unit, uint64_t bytes,
          int rounds) {
  const Owned to(platform, bytes, std::byte{2});
  device::Memory from;
  const std::shared_ptr<PeerMemory> peer = Must(PeerMemory::Open(platform, descriptor, bytes));
  const double mapping = Seconds([&] { from = Must(peer->At({0, bytes})); });
  const auto copy = [&](uint64_t first, uint64_t stride) {
    uint64_t hash = 0;
    for (uint64_t at = first * unit; at < bytes; at += stride * unit) {
      const device::CopyOp op{to.memory.Part(at, unit), from.Part(at, unit), &hash};
      if (!to.memory.device->Copy({&op, 1}).Wait().ok()) std::exit(1);
    }
  };
  double best = 0;
  unsigned best_threads = 0;
  for (const unsigned threads : std::set<unsigned>{1, 2, std::thread::hardware_concurrency()}) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      times.push_back(Seconds([&] {
        std::vector<std::jthread> all;
        for (unsigned t = 0; t < threads; ++t) all.emplace_back(copy, t, threads);
      }));
    }
    std::sort(times.begin(), times.end());
    const double rate = static_cast<double>(bytes) / times[times.size() / 2] / 1e9;
    if (rate > best) std::tie(best, best_threads) = std::pair(rate, threads);
  }
  fmt::print("{}\n", nlohmann::json{{"gb_per_s", best},
                                    {"threads", best_threads},
                                    {"map_gb_per_s", static_cast<double>(bytes) / mapping / 1e9}}
                         .dump());
  std::fflush(stdout);
}

int Main(uint64_t unit, uint64_t bytes, int rounds, bool huge) {
  if (unit == 0 || unit % 4096 != 0 || bytes < unit || rounds < 1) {
    std::fprintf(
        stderr,
        "usage: tangram-copy UNIT_BYTES TOTAL_BYTES ROUNDS [huge] (units of whole 4 KiB)\n");
    return 2;
  }
  constexpr uint64_t kHuge = 2 << 20;
  bytes = std::lcm(unit, kHuge) * (bytes / std::lcm(unit, kHuge) + 1);
  const auto platform =
      Must(device::MakePlatform({.map_bytes = huge ? kHuge : 4096, .hugetlb = huge}));
  const Owned source(*platform, bytes, std::byte{1});
  const pid_t reader = fork();
  if (reader == 0) {
    Read(*platform, source.devices.weights->descriptor(), unit, bytes, rounds);
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
  const bool huge = argc == 5 && std::string(argv[4]) == "huge";
  if (argc != 4 && !huge) return tangram::mover::Main(0, 0, 0, false);
  return tangram::mover::Main(std::strtoull(argv[1], nullptr, 10),
                              std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]), huge);
}
