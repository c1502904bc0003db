#include "e2e/engine/model/sampler.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <vector>

#include "e2e/engine/model/kernels.h"

namespace tangram::model {

uint64_t LogitHash(std::span<const float> logits) {
  return XXH3_64bits(logits.data(), logits.size_bytes());
}

double UniformAt(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(position),
                               static_cast<uint32_t>(position >> 32), 0, 0};
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{c[1]} << 32 | c[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

uint32_t Sample(std::span<const float> logits, const Sampling& sampling, uint64_t position) {
  const auto best = static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) -
                                          logits.begin());  // the first of equals
  if (!(sampling.temperature > 0)) return best;

  struct Candidate {
    float weight;
    uint32_t token;
  };
  std::vector<Candidate> candidates(logits.size());
  double total = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {Exp((logits[i] - logits[best]) / sampling.temperature), i};
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  });
  for (const Candidate& c : candidates) total += c.weight;
  if (sampling.top_p > 0 && sampling.top_p < 1) {
    const double enough = total * sampling.top_p;
    double sum = 0;
    size_t keep = 0;
    while (keep < candidates.size() && sum < enough) sum += candidates[keep++].weight;
    candidates.resize(std::max<size_t>(keep, 1));
    total = sum;
  }
  const double point = UniformAt(sampling.seed, position) * total;
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (point < sum) return c.token;
  }
  return candidates.back().token;
}

}  // namespace tangram::model
