// tangram-remap: the cost for an engine of mapping one expert's pages. Compares a device with bare
// MAP_FIXED + MAP_POPULATE of the same pages, and with a copy of the same bytes. All pages exist
// before. Prints one JSON object per size, then the summary. Pages are huge ones of the pool if
// enough are free, else the machine's pages for shared memory.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/device/platform.h"

namespace tangram::device {
namespace {

constexpr uint64_t kMiB = 1 << 20, kMost = 64 * kMiB;

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "tangram-remap: %s\n", result.status().message().c_str());
  std::exit(1);
}

double Microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

uint64_t FreeHugePages() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    if (uint64_t pages = 0; word == "HugePages_Free:" && file >> pages) return pages;
  }
  return 0;
}

// Bytes to copy: more than the last-level cache, so that a copy reads from memory.
uint64_t LastCacheBytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  uint64_t kib = 0;
  file >> kib;
  return kib == 0 ? 64 * kMiB : kib << 10;
}

int Main() {
  const bool quick = std::getenv("QUICK") != nullptr && *std::getenv("QUICK") != '\0';
  const int rounds = quick ? 22 : 82;
  const uint64_t pool = std::max(4 * LastCacheBytes(), 4 * kMost) / kMost * kMost;
  const uint64_t kv = 2 * kMiB, control = 4096;
  const bool huge = FreeHugePages() * 2 * kMiB >= pool + kv + 2 * kMiB;
  const auto platform = Must(MakePlatform({.map_bytes = 2 * kMiB, .hugetlb = huge}));
  const RankDevices owner =
      Must(platform->Make("bench", {.weights = pool, .kv = kv, .control = control}));
  const auto [whole, mapping] = Must(MapWhole(*owner.weights));
  auto* const bytes = reinterpret_cast<std::byte*>(whole->address());
  const double faulting = Microseconds([&] { std::memset(bytes, 1, pool); });

  const RankDevices engine = platform->Importers();
  const Export exported = Must(owner.weights->ExportOf(mapping.block()));
  const int fd = exported.descriptors[0]->get();
  const Extent all{0, pool};
  const BlockPtr block = Must(engine.weights->Import(fd, {&all, 1}));
  const SpacePtr space = Must(engine.weights->Reserve(kMost));
  // At the same addresses: neighbouring mappings decide what the kernel has to split.
  auto* const addresses = reinterpret_cast<std::byte*>(space->address());
  std::vector<std::byte> target(kMost, std::byte{2});

  double worst_bare = 0, worst_copy = 0;
  for (uint64_t size = 2 * kMiB; size <= kMost; size *= 2) {
    std::vector<double> ours, theirs, copies;
    for (int round = 0; round < rounds; ++round) {
      // Another part in each round, like another expert.
      const uint64_t at = static_cast<uint64_t>(round) * size % pool;
      const auto map = [&] {
        std::vector<Mapping> mapped;
        ours.push_back(Microseconds([&] {
          const Placement placement{0, block, {at, size}};
          mapped = Must(engine.weights->Map(space, {&placement, 1}, Access::kRead));
        }));
        engine.weights->Release(std::move(mapped), Event::Finished(OkStatus()));
      };
      const auto map_barely = [&] {
        theirs.push_back(Microseconds([&] {
          if (mmap(addresses, size, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
                   static_cast<off_t>(at)) == MAP_FAILED) {
            std::perror("tangram-remap: mmap");
            std::exit(1);
          }
        }));
        (void)mmap(addresses, size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      };
      // Alternates, with another part each time: the kernel's page data is equally cold for both.
      if (round % 2 == 0) {
        map();
      } else {
        map_barely();
      }
    }
    for (int round = 0; round < rounds / 2; ++round) {
      // From one expert to another, and others the next time: no cache has them.
      const uint64_t at = static_cast<uint64_t>(round) * size;
      copies.push_back(
          Microseconds([&] { std::memcpy(target.data() + at % kMost, bytes + at % pool, size); }));
    }
    const double mine = Median(ours), plain = Median(theirs), copy = Median(copies);
    worst_bare = std::max(worst_bare, mine / plain);
    worst_copy = std::max(worst_copy, mine / copy);
    fmt::print("{}\n", nlohmann::json{{"bench", "remap"},
                                      {"mib", size / kMiB},
                                      {"map_us", mine},
                                      {"bare_us", plain},
                                      {"copy_us", copy},
                                      {"over_bare", mine / plain},
                                      {"over_copy", mine / copy}}
                           .dump());
  }
  fmt::print(
      "{}\n",
      nlohmann::json{
          {"bench", "remap"},
          {"value", worst_bare},
          {"unit", "times a bare mmap of the same pages, worst of 2 to 64 MiB"},
          {"ceiling", 1},
          {"ratio", worst_bare},
          {"metrics",
           {{"over_bare", worst_bare},
            {"over_copy", worst_copy},
            {"fault_us_per_mib", faulting / static_cast<double>(pool / kMiB)}}},
          {"env", {{"pages", platform->pages()}, {"pool_mib", pool / kMiB}, {"rounds", rounds}}}}
          .dump());
  return 0;
}

}  // namespace
}  // namespace tangram::device

int main() { return tangram::device::Main(); }
