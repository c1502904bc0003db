// The kernels, for who launches them: their image, and for each its name, its parameters
// (parameters.h), how large a grid it wants, and its twin on the host. No header of CUDA is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/parameters.h"
#include "kernels/sectors.h"

namespace tangram::kernels {

// What the driver loads (cuModuleLoadData): machine code and PTX. Empty: built without
// (-DTANGRAM_CUDA=OFF).
std::span<const std::byte> Image();

struct Kernel {
  std::string_view name;
  size_t parameter_bytes = 0;  // of its struct
  // Does what a launch of the kernel does, on memory that the host reaches, and is done when it
  // returns. `parameters` points at the struct.
  void (*twin)(unsigned blocks, unsigned threads, const void* parameters) = nullptr;
  // The same, its threads in the opposite order, and tells what the launch would load and store on
  // a GPU (sectors.h).
  Traffics (*count)(unsigned blocks, unsigned threads, const void* parameters) = nullptr;
};

std::span<const Kernel> All();
// Null: there is none of this name.
const Kernel* Find(std::string_view name);

// Number the units of a list, one after another (`first`), and return how many there are.
uint64_t NumberRanges(std::span<HashRange> ranges);
uint64_t NumberStrips(std::span<CopyStrip> strips);
uint64_t NumberKvMoves(std::span<KvMove> moves);
// Sets `units` and `width` of parameters whose other members are set; `targets` are those
// addresses.
void NumberLatentMoves(std::span<LatentMove> moves, std::span<const uint64_t> targets,
                       KvLatentParameters* parameters);

// Scratch of a launch of hash_sums or copy_hash: a sixteenth of the bytes, and some.
uint64_t HashScratchBytes(uint64_t units, uint64_t ranges);

// Grids that have work for every block, and at most so many blocks (at least 1): what is left of
// the GPU goes on with what it does.
Launch HashSumsLaunch(const HashParameters& parameters, uint32_t most_blocks);  // of copy_hash, too
Launch HashChainLaunch(const HashParameters& parameters, uint32_t most_blocks);
Launch CopyStripsLaunch(const CopyStripsParameters& parameters, uint32_t most_blocks);
Launch KvByHeadLaunch(const KvByHeadParameters& parameters, uint32_t most_blocks);
Launch KvLatentLaunch(const KvLatentParameters& parameters, uint32_t most_blocks);
Launch GatherBlocksLaunch(const GatherBlocksParameters& parameters, uint32_t most_blocks);
Launch LoadHistogramLaunch(const LoadHistogramParameters& parameters, uint32_t most_blocks);
Launch PartialSumsLaunch(const PartialSumsParameters& parameters, uint32_t most_blocks);
// Of a kernel of a decode step that computes so many results, each by a thread.
Launch ItemsLaunch(uint64_t results, uint32_t most_blocks);

}  // namespace tangram::kernels
