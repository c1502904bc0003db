// Cases of kv_by_head and kv_latent.
#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 512;

// Pages of all heads on one side, of one head on the other; blocks are renumbered, some are partly
// filled.
TwinCase HeadsCase(uint32_t seed, uint64_t layers, uint64_t heads, uint64_t tokens, uint64_t row,
                   uint64_t blocks) {
  const uint64_t part = tokens * heads * row, side = layers * blocks * 2 * part;
  return {
      "kv_by_head", 2 * side + 64, [=](Image* image) {
        Draw draw(seed);
        draw.Fill(image->data());
        const uint64_t from = image->base(), to = image->base() + side + 16 * draw.Below(4);
        const uint64_t step = blocks > 3 ? 3 : 1;  // for renumbering: no divisor of `blocks`
        std::vector<kernels::KvMove> moves;
        for (uint64_t b = 0; b < blocks; ++b) {
          for (uint64_t h = 0; h < heads; ++h) {
            // The head's pages on the other side: all its blocks together.
            const uint64_t place =
                h * layers * blocks * 2 * tokens * row + (b * step + 1) % blocks * 2 * tokens * row;
            moves.push_back({to + place, blocks * 2 * tokens * row, tokens * row, row,
                             from + b * 2 * part + h * row, blocks * 2 * part, part, heads * row,
                             layers, 2, draw.OneIn(4) ? draw.From(0, tokens) : tokens, row, 0});
          }
        }
        const uint64_t units = kernels::NumberKvMoves(moves);
        const kernels::KvByHeadParameters parameters{image->Append(moves), moves.size(), units};
        image->Launch("kv_by_head", kernels::KvByHeadLaunch(parameters, kManyBlocks), parameters);
      }};
}

TwinCase LatentCase(uint32_t seed, uint64_t row, uint64_t ranks, uint64_t blocks) {
  constexpr uint64_t kTokens = 16;
  const uint64_t side = blocks * kTokens * row;
  return {"kv_latent", (1 + ranks) * side + 16, [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());
            const uint64_t shift = draw.OneIn(2) ? 0 : draw.Below(16);
            std::vector<kernels::LatentMove> moves;
            std::vector<uint64_t> targets;
            for (uint64_t b = 0; b < blocks; ++b) {
              moves.push_back({image->base() + b * kTokens * row,
                               draw.OneIn(4) ? draw.From(0, kTokens) : kTokens, 0});
              for (uint64_t r = 0; r < ranks; ++r) {
                targets.push_back(image->base() + (1 + r) * side + shift +
                                  (b + r) % blocks * kTokens * row);
              }
            }
            kernels::KvLatentParameters parameters{
                0, moves.size(), image->Append(targets), ranks, row, row, row, 0, 0};
            kernels::NumberLatentMoves(moves, targets, &parameters);
            parameters.moves = image->Append(moves);
            image->Launch("kv_latent", kernels::KvLatentLaunch(parameters, kManyBlocks),
                          parameters);
          }};
}

}  // namespace

void AddKvCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  cases->push_back(HeadsCase(seed, 3, 4, 16, 256, 7));
  cases->push_back(HeadsCase(seed + 1, 2, 8, 16, 64, scale * 10));
  cases->push_back(HeadsCase(seed + 2, 2, 4, 5, 12, 4));
  cases->push_back(HeadsCase(seed + 3, 2, 2, 3, 7, 5));  // not a multiple of anything
  cases->push_back(LatentCase(seed, 1152, 8, scale * 5));
  cases->push_back(LatentCase(seed + 1, 656, 3, 5));
  cases->push_back(LatentCase(seed + 2, 7, 2, 20));
}

}  // namespace tangram::gpu
