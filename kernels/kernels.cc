#include "kernels/kernels.h"

#include <algorithm>

#include "kernels/executor.h"
#include "kernels/list.h"

namespace tangram::kernels {
namespace {

#define TANGRAM_TWIN(name, Parameters, Body)                                                  \
  Kernel{#name, sizeof(Parameters), [](unsigned blocks, unsigned threads, const void* what) { \
           const Parameters parameters = *static_cast<const Parameters*>(what);               \
           DirectMemory memory;                                                               \
           Execute({blocks, threads}, memory, [&](const Where& where, DirectMemory& there) {  \
             Body(where, parameters, there);                                                  \
           });                                                                                \
         }},
constexpr Kernel kAll[] = {TANGRAM_KERNELS(TANGRAM_TWIN)};

// Of `threads` each, for so much work that comes in parts of `per_block`.
Launch LaunchOf(uint64_t work, uint64_t per_block, uint32_t threads, uint32_t most_blocks) {
  const uint64_t blocks = (work + per_block - 1) / per_block;
  return {static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, std::max(most_blocks, 1u))),
          threads};
}

template <typename Item, typename UnitsOf>
uint64_t Number(std::span<Item> items, UnitsOf&& units_of) {
  uint64_t units = 0;
  for (Item& item : items) {
    item.first = units;
    units += units_of(item);
  }
  return units;
}

}  // namespace

std::span<const Kernel> All() { return kAll; }

const Kernel* Find(std::string_view name) {
  const auto* found = std::find_if(std::begin(kAll), std::end(kAll),
                                   [&](const Kernel& kernel) { return kernel.name == name; });
  return found == std::end(kAll) ? nullptr : found;
}

uint64_t NumberRanges(std::span<HashRange> ranges) {
  return Number(ranges, [](const HashRange& range) { return HashUnitsOf(range.bytes); });
}
uint64_t NumberStrips(std::span<CopyStrip> strips) {
  return Number(strips, [](const CopyStrip& strip) { return TilesOf(strip); });
}

uint64_t HashScratchBytes(uint64_t units, uint64_t ranges) {
  return units * xxh3::kPairs * sizeof(Word16) + ranges * sizeof(HashMeeting);
}

Launch HashSumsLaunch(const HashParameters& parameters, uint32_t most_blocks) {
  constexpr uint32_t kThreads = 256;
  return LaunchOf(parameters.units, kThreads / xxh3::kPairs, kThreads, most_blocks);
}
Launch HashChainLaunch(const HashParameters& parameters, uint32_t most_blocks) {
  // Small blocks, so that ranges, each of which is slow, are on many multiprocessors.
  constexpr uint32_t kThreads = 32;
  return LaunchOf(parameters.count, kThreads / xxh3::kPairs, kThreads, most_blocks);
}
Launch CopyStripsLaunch(const CopyStripsParameters& parameters, uint32_t most_blocks) {
  return LaunchOf(parameters.units, 1, kMostThreads, most_blocks);
}

}  // namespace tangram::kernels
