// Cases of hash_sums, copy_hash and hash_chain: ranges of lengths around the limits of special code
// paths, at every alignment, and large ones.
#include <algorithm>

#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 512;

struct Range {
  uint64_t bytes, from, to;  // offsets in the data
};

TwinCase CaseOf(const char* kernel, uint32_t seed, const std::vector<Range>& ranges,
                uint64_t data_bytes, uint32_t most_blocks) {
  // The bytes are followed by hashes, then the scratch; the kernels must leave both equal, too.
  const uint64_t hashes_at = RoundUp(data_bytes, 16);
  std::vector<kernels::HashRange> plain;
  for (const Range& range : ranges) plain.push_back({0, range.bytes, 0, 0, 0});
  const uint64_t units = kernels::NumberRanges(plain);
  const uint64_t scratch_at = RoundUp(hashes_at + ranges.size() * 8, 16);
  const uint64_t all = scratch_at + kernels::HashScratchBytes(units, ranges.size());
  const bool copies = std::string_view(kernel) == "copy_hash";
  return {kernel, all, [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());
            std::vector<kernels::HashRange> list;
            for (const Range& range : ranges) {
              list.push_back({image->base() + range.from, range.bytes,
                              copies ? image->base() + range.to : 0,
                              image->base() + hashes_at + list.size() * 8, 0});
            }
            kernels::NumberRanges(list);
            const kernels::HashParameters parameters{image->Append(list), list.size(), units,
                                                     image->base() + scratch_at};
            image->Launch(kernel, kernels::HashSumsLaunch(parameters, most_blocks), parameters);
            image->Launch("hash_chain", kernels::HashChainLaunch(parameters, most_blocks),
                          parameters);
          }};
}

// Places ranges one after another, each at its alignment, sources then targets.
struct Ranges {
  std::vector<Range> list;
  uint64_t end = 0;
  void Add(uint64_t bytes, uint64_t from_at, uint64_t to_at) {
    const uint64_t from = RoundUp(end, 16) + from_at, to = RoundUp(from + bytes, 16) + to_at;
    list.push_back({bytes, from, to});
    end = to + bytes + 3;
  }
};

}  // namespace

void AddHashCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  for (const char* kernel : {"hash_sums", "copy_hash"}) {
    Draw draw(seed);
    Ranges lengths, places, large;
    for (uint64_t bytes = 0; bytes <= 300; ++bytes) lengths.Add(bytes, draw.Below(16), 0);
    for (uint64_t blocks = 1; blocks <= 12; ++blocks) {  // around whole blocks and stripes
      for (uint64_t bytes = blocks * 1024 - 65; bytes <= blocks * 1024 + 65; bytes += 13) {
        lengths.Add(bytes, draw.OneIn(2) ? 0 : draw.Below(16), draw.Below(16));
      }
    }
    for (uint64_t from = 0; from < 16; ++from) {
      for (uint64_t to = 0; to < 16; ++to) places.Add(draw.From(200, 4000), from, to);
    }
    for (uint64_t i = 0; i < 4; ++i) large.Add(draw.Below(scale << 17), 0, 0);
    large.Add(scale << 18, 0, draw.Below(2));
    large.Add(draw.Below(scale << 16), draw.Below(16), draw.Below(16));
    cases->push_back(CaseOf(kernel, seed, lengths.list, lengths.end, kManyBlocks));
    cases->push_back(CaseOf(kernel, seed, places.list, places.end, 3));
    cases->push_back(CaseOf(kernel, seed, large.list, large.end, kManyBlocks));
  }
}

}  // namespace tangram::gpu
