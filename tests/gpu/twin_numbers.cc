// Cases of load_histogram and partial_sums.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/gpu/draw.h"
#include "tests/gpu/twin_case.h"

namespace tangram::gpu {
namespace {

constexpr uint32_t kManyBlocks = 512;

// Most ids are of few experts, as in a batch; some are of no expert.
TwinCase HistogramCase(uint32_t seed, uint64_t experts, uint64_t count) {
  const uint64_t counts = (experts + 1) * sizeof(uint64_t);
  return {"load_histogram", counts, [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());  // counts are added to the existing values
            std::vector<int32_t> ids(count);
            for (int32_t& id : ids) {
              id = static_cast<int32_t>(draw.Below(draw.OneIn(2) ? 3 : experts + 3)) - 2;
              if (draw.OneIn(100)) id = std::numeric_limits<int32_t>::max();
            }
            const kernels::LoadHistogramParameters parameters{image->Append(ids), count,
                                                              image->base(), experts};
            image->Launch("load_histogram", kernels::LoadHistogramLaunch(parameters, kManyBlocks),
                          parameters);
          }};
}

// `any`: numbers with random bits, many of which are out of range.
TwinCase SumsCase(uint32_t seed, uint64_t elements, uint64_t count, bool any) {
  const uint64_t pitch = RoundUp(elements * sizeof(float), 64);
  const uint64_t sums_at = count * pitch, bad_at = sums_at + elements * sizeof(int64_t);
  return {"partial_sums", bad_at + sizeof(uint64_t), [=](Image* image) {
            Draw draw(seed);
            draw.Fill(image->data());
            for (uint64_t at = 0; !any && at < sums_at; at += sizeof(float)) {
              const double number =
                  static_cast<double>(static_cast<int64_t>(draw.Below(1 << 30)) - (1 << 29));
              const auto value =
                  static_cast<float>(std::ldexp(number, -static_cast<int>(draw.Below(60))));
              std::memcpy(&image->data()[at], &value, sizeof value);
            }
            std::memset(&image->data()[sums_at], 0, elements * sizeof(int64_t));
            std::memset(&image->data()[bad_at], 0xff, sizeof(uint64_t));
            const kernels::PartialSumsParameters parameters{image->base(), count,
                                                            pitch,         image->base() + sums_at,
                                                            elements,      image->base() + bad_at};
            image->Launch("partial_sums", kernels::PartialSumsLaunch(parameters, kManyBlocks),
                          parameters);
          }};
}

}  // namespace

void AddNumberCases(uint32_t seed, uint64_t scale, std::vector<TwinCase>* cases) {
  cases->push_back(HistogramCase(seed, 1, 1000));
  cases->push_back(HistogramCase(seed + 1, 128, scale << 16));
  cases->push_back(SumsCase(seed, 7, 3, false));
  cases->push_back(SumsCase(seed + 1, (scale << 14) + 5, 9, false));
  cases->push_back(SumsCase(seed + 2, 4099, 4, true));
}

}  // namespace tangram::gpu
