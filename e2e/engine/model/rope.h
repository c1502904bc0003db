// Rotary position embeddings (Su et al., arXiv:2104.09864), plain or stretched by YaRN (Peng et
// al., arXiv:2309.00071).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tangram::model {

// Stretches RoPE beyond the trained positions: slow angles are divided by `factor`, fast ones stay,
// with a ramp in between.
struct Yarn {
  double factor = 1;
  double positions = 0;               // trained context length
  double fast = 32, slow = 1;         // turns within `positions` at which the ramp begins and ends
  double mscale = 0, mscale_all = 0;  // 0: not specified
  double TableScale() const;          // factor of cos and sin
  double ScoreScale() const;          // factor of query . key
};

struct Rope {
  uint32_t width = 0;  // elements that are rotated, even
  double theta = 10000;
  bool pairs = false;  // elements 2i and 2i + 1 rotate together; else i and i + width / 2
  std::optional<Yarn> yarn;
};

// [positions, width / 2, {cos, sin}].
std::vector<float> RopeTable(const Rope& rope, uint32_t positions);

// Rotates x [width] by the angles of one position (at table + position * width). In `out` a pair's
// elements are half a width apart, for any order in x. x may be out unless `pairs`.
void Rotate(const Rope& rope, const float* angles, const float* x, float* out);

}  // namespace tangram::model
