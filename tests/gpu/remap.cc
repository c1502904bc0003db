// Costs of the driver's virtual memory calls, by the size of a handle. A flip of Tangram costs one
// map per handle and one access per address range; a transition that allocates no memory has
// neither create nor release.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "agent/base/unique_fd.h"
#include "tests/gpu/acts.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/timing.h"

namespace tangram::gpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Microseconds of each call, by its name.
using Costs = std::map<std::string, std::vector<double>>;

// Runs all calls once, for `count` handles of `bytes`.
void Round(const Gpu& gpu, uint64_t bytes, uint64_t count, Costs* costs) {
  const auto& driver = gpu.driver();
  const auto timed = [&](const char* call, const std::function<void()>& work) {
    (*costs)[call].push_back(HostMicroseconds(work));
  };
  const Range range(gpu, bytes * count);
  const auto at = [&](uint64_t i) { return range.address() + i * bytes; };
  const CUmemAllocationProp properties = gpu.properties();
  std::vector<CUmemGenericAllocationHandle> handles(count);
  for (auto& handle : handles) {
    timed("create", [&] {
      gpu.Check(driver.MemCreate(&handle, bytes, &properties, 0), "creating a handle");
    });
  }
  const auto map_all = [&] {
    for (uint64_t i = 0; i < count; ++i) {
      timed("map", [&] { gpu.Check(driver.MemMap(at(i), bytes, 0, handles[i], 0), "mapping"); });
    }
  };
  const auto unmap_all = [&] {
    for (uint64_t i = 0; i < count; ++i) timed("unmap", [&] { Unmap(gpu, at(i), bytes); });
  };
  map_all();
  for (uint64_t i = 0; i < count; ++i) {
    timed("access, one handle",
          [&] { Allow(gpu, at(i), bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE); });
  }
  unmap_all();
  map_all();
  const double together = HostMicroseconds(
      [&] { Allow(gpu, at(0), bytes * count, CU_MEM_ACCESS_FLAGS_PROT_READWRITE); });
  (*costs)["access, all at once, of each"].push_back(together / static_cast<double>(count));
  unmap_all();
  // An expert's page is exchanged with another's at the same address.
  map_all();
  Allow(gpu, at(0), bytes * count, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (uint64_t i = 0; i + 1 < count; i += 2) {
    timed("exchange (unmap, map, access)", [&] {
      Unmap(gpu, at(i), bytes);
      gpu.Check(driver.MemMap(at(i), bytes, 0, handles[i + 1], 0), "mapping");
      Allow(gpu, at(i), bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    });
  }
  unmap_all();
  for (const auto handle : handles) {
    int descriptor = -1;
    timed("export", [&] {
      gpu.Check(driver.MemExportToShareableHandle(&descriptor, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "exporting");
    });
    const UniqueFd own(descriptor);
    CUmemGenericAllocationHandle imported = 0;
    timed("import", [&] {
      void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
      gpu.Check(driver.MemImportFromShareableHandle(&imported, number,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "importing");
    });
    gpu.Check(driver.MemRelease(imported), "releasing an import");
  }
  for (const auto handle : handles) {
    timed("release", [&] { gpu.Check(driver.MemRelease(handle), "releasing"); });
  }
}

// Microseconds of a copy of one such handle on the device.
double CopyMicroseconds(const Gpu& gpu, uint64_t bytes) {
  const Buffer from(gpu, bytes), to(gpu, bytes);
  Stopwatch watch(gpu, 1);
  return 1e6 *
         watch.Seconds(5, [&] { Copy(gpu, to.address(), from.address(), bytes, watch.stream(0)); });
}

}  // namespace

void RunRemap(const Task& task) {
  const Gpu gpu(task.driver);
  const uint64_t room = std::min<uint64_t>(gpu.free_bytes() / 2, 8192 * kMiB);
  const int rounds = task.small ? 1 : 4;
  std::map<uint64_t, double> exchange;  // median, by MiB
  for (const uint64_t mib : {2, 8, 20, 36, 64, 256}) {
    const uint64_t bytes = RoundUp(mib * kMiB, gpu.granularity());
    const uint64_t count = std::min<uint64_t>(task.small ? 4 : 64, room / bytes);
    if (count < 2) {
      task.out->NotRun(fmt::format("handles of {} MiB", mib), "there is no memory for two");
      continue;
    }
    Costs costs;
    Round(gpu, bytes, count, &costs);
    costs.clear();  // the first round warms up the driver
    for (int i = 0; i < rounds; ++i) Round(gpu, bytes, count, &costs);
    for (const auto& [call, microseconds] : costs) {
      task.out->Add({.name = fmt::format("{}, {} MiB", call, mib),
                     .value = Quantile(microseconds, 0.5),
                     .unit = "us",
                     .p99 = Quantile(microseconds, 0.99),
                     .samples = microseconds.size()});
    }
    exchange[mib] = Quantile(costs["exchange (unmap, map, access)"], 0.5);
    task.out->Add({.name = fmt::format("exchange of {} MiB, over a copy of as much", mib),
                   .value = exchange[mib],
                   .unit = "us",
                   .ceiling = CopyMicroseconds(gpu, bytes),
                   .ceiling_is = "us of a copy on the device"});
  }
  if (exchange.count(2) != 0 && exchange.count(64) != 0) {
    task.out->Add({.name = "exchange of 64 MiB over one of 2 MiB",
                   .value = exchange[64],
                   .unit = "us",
                   .ceiling = exchange[2],
                   .ceiling_is = "us of 2 MiB",
                   .goal = 2,
                   .at_most = true,
                   .note = "flat: a handle that is larger costs as much"});
  }
}

}  // namespace tangram::gpu
