// Choosing the next token, and the hash that proves the logits.
#pragma once

#include <cstdint>
#include <span>

namespace tangram::model {

struct Sampling {
  float temperature = 0;  // 0: greedy
  float top_p = 1;        // 1 (or 0, an unset field of the message): off
  uint64_t seed = 0;
};

// XXH3-64 of the fp32 bytes of the logits.
uint64_t LogitHash(std::span<const float> logits);

// The token for absolute position `position`. Greedy: the highest logit, ties to the lowest token.
// Otherwise softmax(logits / temperature), cut to the smallest set of most probable tokens that
// reaches top_p, and one random number. That number depends only on (seed, position), not on batch,
// rank or earlier draws.
uint32_t Sample(std::span<const float> logits, const Sampling& sampling, uint64_t position);

// The random number of (seed, position), in [0, 1): Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011), key = seed, counter = position.
double UniformAt(uint64_t seed, uint64_t position);

}  // namespace tangram::model
