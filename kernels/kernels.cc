#include "kernels/kernels.h"

#include <algorithm>
#include <type_traits>

#include "kernels/list.h"

namespace tangram::kernels {
namespace {

// Runs the body of a kernel, one thread after another. A counting memory gets the threads from last
// to first, so results that depend on their order differ.
template <typename Parameters, typename Memory, typename Body>
void Execute(Launch launch, const void* what, Memory& memory, Body&& body) {
  const Parameters parameters = *static_cast<const Parameters*>(what);
  constexpr bool kCounts = std::is_same_v<Memory, CountingMemory>;
  for (uint32_t b = 0; b < launch.blocks; ++b) {
    for (uint32_t t = 0; t < launch.threads; ++t) {
      Where where{b, launch.blocks, t, launch.threads};
      if constexpr (kCounts) {
        where.block = launch.blocks - 1 - b;
        where.thread = launch.threads - 1 - t;
        memory.Begin(where);
      }
      body(where, parameters, memory);
    }
  }
}

#define TANGRAM_TWIN(name, Parameters, Body)                                           \
  Kernel{#name, sizeof(Parameters),                                                    \
         [](unsigned blocks, unsigned threads, const void* what) {                     \
           DirectMemory memory;                                                        \
           Execute<Parameters>({blocks, threads}, what, memory, Body<DirectMemory>);   \
         },                                                                            \
         [](unsigned blocks, unsigned threads, const void* what) {                     \
           CountingMemory memory;                                                      \
           Execute<Parameters>({blocks, threads}, what, memory, Body<CountingMemory>); \
           return memory.Total();                                                      \
         }},
constexpr Kernel kAll[] = {TANGRAM_KERNELS(TANGRAM_TWIN)};

// A grid of blocks of `threads` threads, for `work` in parts of `per_block`.
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
uint64_t NumberKvMoves(std::span<KvMove> moves) {
  return Number(moves, [](const KvMove& move) { return TilesOf(move); });
}
void NumberLatentMoves(std::span<LatentMove> moves, std::span<const uint64_t> targets,
                       KvLatentParameters* p) {
  uint64_t bits = p->from_token_stride | p->to_token_stride;
  for (const LatentMove& move : moves) bits |= move.from;
  for (const uint64_t target : targets) bits |= target;
  p->width = AccessOf(bits);
  p->units = Number(moves, [&](const LatentMove& move) {
    return TilesOf(move.tokens, p->row_bytes, static_cast<uint32_t>(p->width));
  });
}

uint64_t HashScratchBytes(uint64_t units, uint64_t ranges) {
  return units * xxh3::kPairs * sizeof(Word16) + ranges * sizeof(HashMeeting);
}

Launch HashSumsLaunch(const HashParameters& parameters, uint32_t most_blocks) {
  constexpr uint32_t kThreads = 256;
  return LaunchOf(parameters.units, kThreads / xxh3::kPairs, kThreads, most_blocks);
}
Launch HashChainLaunch(const HashParameters& parameters, uint32_t most_blocks) {
  // Small blocks spread the ranges, each of which is slow, over many multiprocessors.
  constexpr uint32_t kThreads = 32;
  return LaunchOf(parameters.count, kThreads / xxh3::kPairs, kThreads, most_blocks);
}
// A tile has eight words per thread of a full block.
Launch CopyStripsLaunch(const CopyStripsParameters& parameters, uint32_t most_blocks) {
  return LaunchOf(parameters.units, 1, kMostThreads, most_blocks);
}
Launch KvByHeadLaunch(const KvByHeadParameters& parameters, uint32_t most_blocks) {
  return LaunchOf(parameters.units, 1, kMostThreads, most_blocks);
}
Launch KvLatentLaunch(const KvLatentParameters& parameters, uint32_t most_blocks) {
  return LaunchOf(parameters.units, 1, kMostThreads, most_blocks);
}
Launch GatherBlocksLaunch(const GatherBlocksParameters& parameters, uint32_t most_blocks) {
  return LaunchOf(TilesOf(parameters), 1, kMostThreads, most_blocks);
}
Launch LoadHistogramLaunch(const LoadHistogramParameters& parameters, uint32_t most_blocks) {
  constexpr uint32_t kThreads = 256;
  return LaunchOf(parameters.count, kThreads, kThreads, most_blocks);
}
Launch PartialSumsLaunch(const PartialSumsParameters& parameters, uint32_t most_blocks) {
  constexpr uint32_t kThreads = 256;
  return LaunchOf(parameters.elements, kThreads, kThreads, most_blocks);
}
Launch ItemsLaunch(uint64_t results, uint32_t most_blocks) {
  constexpr uint32_t kThreads = 128;
  return LaunchOf(results, kThreads, kThreads, most_blocks);
}

}  // namespace tangram::kernels
