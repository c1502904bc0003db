// Cases of copy_strips and gather_blocks: random shapes, places and gaps, any start of the ring.
#include <algorithm>
#include <numeric>

#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 512;

// Strips until half of the data is a source and half is a target.
TwinCase StripsCase(uint32_t seed, uint64_t half, uint64_t longest, uint32_t most_blocks) {
  return {"copy_strips", 2 * half, [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());
            std::vector<kernels::CopyStrip> strips;
            uint64_t from = 0, to = half;
            for (;;) {
              const uint64_t unit = uint64_t{1}
                                    << draw.Below(6);  // divides all its numbers; up to 32
              kernels::CopyStrip strip{
                  0, 0, 0, 0, unit * draw.Below(longest / unit), draw.Below(99), 0};
              if (draw.OneIn(4)) strip.bytes += draw.Below(16);
              if (draw.OneIn(4)) strip.lines = 1;
              strip.to_pitch = strip.bytes + unit * draw.Below(8);
              strip.from_pitch = strip.bytes + unit * draw.Below(8);
              strip.from = image->base() + RoundUp(from, unit);
              strip.to = image->base() + RoundUp(to, unit);
              from = RoundUp(from, unit) + strip.lines * strip.from_pitch;
              to = RoundUp(to, unit) + strip.lines * strip.to_pitch;
              if (from > half || to > 2 * half) break;
              strips.push_back(strip);
            }
            const uint64_t units = kernels::NumberStrips(strips);
            const kernels::CopyStripsParameters parameters{image->Append(strips), strips.size(),
                                                           units, draw.Below(units)};
            image->Launch("copy_strips", kernels::CopyStripsLaunch(parameters, most_blocks),
                          parameters);
          }};
}

TwinCase GatherCase(uint32_t seed, uint64_t block_bytes, uint64_t blocks, uint64_t unit) {
  const uint64_t most = block_bytes + 64;  // pitch
  return {"gather_blocks", 2 * (blocks + 1) * most, [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());
            std::vector<uint32_t> from(blocks), to(blocks);
            std::iota(from.begin(), from.end(), 0);
            std::iota(to.begin(), to.end(), 0);
            std::shuffle(from.begin(), from.end(), draw.engine());
            std::shuffle(to.begin(), to.end(), draw.engine());
            const uint64_t from_list = image->Append(from), to_list = image->Append(to);
            const kernels::GatherBlocksParameters parameters{
                image->base() + (blocks + 1) * most + unit * draw.Below(3),
                block_bytes + unit * draw.Below(3),
                draw.OneIn(3) ? 0 : to_list,
                image->base() + unit * draw.Below(3),
                block_bytes + unit * draw.Below(3),
                draw.OneIn(3) ? 0 : from_list,
                block_bytes,
                draw.From(blocks / 2, blocks)};
            image->Launch("gather_blocks", kernels::GatherBlocksLaunch(parameters, kManyBlocks),
                          parameters);
          }};
}

}  // namespace

void AddCopyCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  cases->push_back(StripsCase(seed, 1 << 18, 64, 7));
  cases->push_back(StripsCase(seed + 1, scale << 18, 4096, kManyBlocks));
  cases->push_back(StripsCase(seed + 2, scale << 18, 40'000, kManyBlocks));
  Draw draw(seed);
  cases->push_back(GatherCase(seed, draw.From(1, 300), 200, 1));
  cases->push_back(GatherCase(seed + 1, 4 * draw.From(1, 200), 200, 4));
  cases->push_back(GatherCase(seed + 2, 16 * draw.From(100, 400), scale * 64, 16));
}

}  // namespace tangram::gpu
