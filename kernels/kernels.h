// The kernels, for code that launches them: their image, and for each its name, parameters
// (parameters.h), grid and twin on the host. Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/parameters.h"
#include "kernels/sectors.h"

namespace tangram::kernels {

// The input of the driver (cuModuleLoadData): machine code and PTX. Empty if built without CUDA
// (-DTANGRAM_CUDA=OFF).
std::span<const std::byte> Image();

struct Kernel {
  std::string_view name;
  size_t parameter_bytes = 0;  // size of its struct
  // Does the work of a launch on memory that the host reaches, before it returns. `parameters`
  // points to the struct.
  void (*twin)(unsigned blocks, unsigned threads, const void* parameters) = nullptr;
  // The same with the threads in the opposite order; returns the loads and stores that the launch
  // would make on a GPU (sectors.h).
  Traffics (*count)(unsigned blocks, unsigned threads, const void* parameters) = nullptr;
};

std::span<const Kernel> All();
// Null: no kernel has this name.
const Kernel* Find(std::string_view name);

// Numbers the units of a list consecutively (`first`), and returns their count.
uint64_t NumberRanges(std::span<HashRange> ranges);
uint64_t NumberStrips(std::span<CopyStrip> strips);
uint64_t NumberKvMoves(std::span<KvMove> moves);
// Sets `units` and `width` of parameters whose other members are set; `targets` are the addresses
// in their list.
void NumberLatentMoves(std::span<LatentMove> moves, std::span<const uint64_t> targets,
                       KvLatentParameters* parameters);

// Scratch of a launch of hash_sums or copy_hash: about a sixteenth of the hashed bytes.
uint64_t HashScratchBytes(uint64_t units, uint64_t ranges);

// Grids with work for every block, and at most `most_blocks` blocks (at least 1): the rest of the
// GPU continues its work.
Launch HashSumsLaunch(const HashParameters& parameters, uint32_t most_blocks);  // and copy_hash
Launch HashChainLaunch(const HashParameters& parameters, uint32_t most_blocks);
Launch CopyStripsLaunch(const CopyStripsParameters& parameters, uint32_t most_blocks);
Launch KvByHeadLaunch(const KvByHeadParameters& parameters, uint32_t most_blocks);
Launch KvLatentLaunch(const KvLatentParameters& parameters, uint32_t most_blocks);
Launch GatherBlocksLaunch(const GatherBlocksParameters& parameters, uint32_t most_blocks);
Launch LoadHistogramLaunch(const LoadHistogramParameters& parameters, uint32_t most_blocks);
Launch PartialSumsLaunch(const PartialSumsParameters& parameters, uint32_t most_blocks);
// For a kernel of a decode step with this many results, one per thread.
Launch ItemsLaunch(uint64_t results, uint32_t most_blocks);

}  // namespace tangram::kernels
