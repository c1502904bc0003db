// Cases of dispatch and combine: a pair between ranks of one memory, kernel by kernel.
#include <cmath>
#include <cstring>
#include <string>

#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"
#include "tests/gpu/virtual_ranks.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 64;

// Numbers of all magnitudes, so that sums of few are rounded. No NaN: its bits may differ between
// GPU and host.
void FillNumbers(uint32_t element, std::span<std::byte> bytes, Draw* draw) {
  const size_t size = kernels::BytesOfNumber(element);
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    auto number = static_cast<float>(static_cast<int64_t>(draw->Below(2001)) - 1000);
    number = std::ldexp(number, -static_cast<int>(draw->Below(12)));
    uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    if (element == kernels::kRowBf16) bits >>= 16;
    std::memcpy(&bytes[at], &bits, size);
  }
}

TwinCase PairCase(const VirtualShape& shape) {
  const std::string name = "dispatch and combine";
  return {name, VirtualRanks::DataBytes(shape), [=](Image* image) {
            VirtualRanks ranks(shape, image->base(), [&](const std::vector<std::byte>& list) {
              return image->Append(list);
            });
            Draw draw(shape.seed);
            FillNumbers(shape.x, image->data().subspan(ranks.x_at(), ranks.x_bytes()), &draw);
            FillNumbers(shape.outputs(),
                        image->data().subspan(ranks.given_at(), ranks.given_bytes()), &draw);
            for (const auto& [kernels, lane] : VirtualRanks::Phases()) {
              for (uint32_t r = 0; r < shape.ranks; ++r) {
                kernels::DispatchParameters& p = ranks.of(r);
                p.lane = lane;
                for (const char* const kernel : kernels)
                  image->Launch(kernel, kernels::DispatchLaunch(kernel, p, kManyBlocks), p);
              }
            }
          }};
}

}  // namespace

void AddDispatchCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  using namespace kernels;
  const auto tokens = static_cast<uint32_t>(20 + 20 * scale);
  cases->push_back(PairCase({2, tokens, 256, 6, 3, kRowF32, kRowF32, kRowF32, 2, seed}));
  cases->push_back(PairCase({3, tokens + 1, 131, 7, 2, kRowBf16, kRowBf16, kRowBf16, 1, seed + 1}));
  cases->push_back(PairCase({2, tokens, 384, 5, 2, kRowBf16, kRowFp8, kRowFixed, 1, seed + 2}));
  cases->push_back(PairCase({3, 70, 200, 5, 4, kRowF32, kRowFp8, kRowF32, 2, seed + 3}));
  cases->push_back(PairCase({4, 66, 128, 9, 3, kRowBf16, kRowFp8, kRowBf16, 1, seed + 4}));
}

}  // namespace tangram::gpu
