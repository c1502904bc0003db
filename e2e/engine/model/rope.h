// Rotary position embeddings (Su et al., arXiv:2104.09864), plain or stretched by YaRN (Peng et
// al., arXiv:2309.00071).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tangram::model {

// Positions beyond those of the training: slow angles are divided by `factor`, fast ones stay, in
// between it is a ramp.
struct Yarn {
  double factor = 1;
  double positions = 0;               // that the model was trained with
  double fast = 32, slow = 1;         // turns within these, where the ramp begins and ends
  double mscale = 0, mscale_all = 0;  // 0: nothing is said
  double TableScale() const;          // of cos and sin
  double ScoreScale() const;          // of query . key
};

struct Rope {
  uint32_t width = 0;  // elements that are rotated, even
  double theta = 10000;
  bool pairs = false;  // elements 2i and 2i + 1 turn together; else i and i + width / 2
  std::optional<Yarn> yarn;
};

// [positions, width / 2, {cos, sin}].
std::vector<float> RopeTable(const Rope& rope, uint32_t positions);

// x [width] by the angles of one position (at table + position * width); the two of a pair are
// half a width apart in `out`, wherever they were. x may be out, unless pairs lie side by side.
void Rotate(const Rope& rope, const float* angles, const float* x, float* out);

}  // namespace tangram::model
