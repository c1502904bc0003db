#include "e2e/engine/model/rope.h"

#include <algorithm>
#include <cmath>

namespace tangram::model {
namespace {

double Magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Index of the frequency that makes `turns` turns within the trained positions.
double FrequencyOf(double turns, const Rope& rope) {
  return rope.width * std::log(rope.yarn->positions / (turns * 2 * M_PI)) /
         (2 * std::log(rope.theta));
}

// In fp32, as in transformers: one wrong bit of a frequency changes the angles of late positions.
std::vector<float> Frequencies(const Rope& rope) {
  const uint32_t half = rope.width / 2;
  std::vector<float> out(half);
  for (uint32_t i = 0; i < half; ++i) {
    out[i] = static_cast<float>(1.0 / std::pow(rope.theta, 2.0 * i / rope.width));
  }
  if (!rope.yarn) return out;
  const double low = std::max(std::floor(FrequencyOf(rope.yarn->fast, rope)), 0.0);
  const double high = std::min(std::ceil(FrequencyOf(rope.yarn->slow, rope)), rope.width - 1.0);
  const double span = low == high ? 0.001 : high - low;
  for (uint32_t i = 0; i < half; ++i) {
    const auto power = static_cast<float>(std::pow(rope.theta, 2.0 * i / rope.width));
    const float slow = 1.0f / (static_cast<float>(rope.yarn->factor) * power);
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(span), 0.0f, 1.0f);
    const float stays = 1.0f - ramp;
    out[i] = slow * (1.0f - stays) + 1.0f / power * stays;
  }
  return out;
}

}  // namespace

double Yarn::TableScale() const {
  if (mscale == 0 || mscale_all == 0) return Magnitude(factor, 1);
  return Magnitude(factor, mscale) / Magnitude(factor, mscale_all);
}

double Yarn::ScoreScale() const {
  const double of_each = mscale_all == 0 ? 1 : Magnitude(factor, mscale_all);
  return of_each * of_each;
}

// The angle is rounded to fp32, as in transformers; cos and sin are computed in double and rounded
// once.
std::vector<float> RopeTable(const Rope& rope, uint32_t positions) {
  const std::vector<float> frequency = Frequencies(rope);
  const auto scale = static_cast<float>(rope.yarn ? rope.yarn->TableScale() : 1);
  std::vector<float> table(size_t{positions} * rope.width);
  float* out = table.data();
  for (uint32_t p = 0; p < positions; ++p) {
    for (const float turn : frequency) {
      const auto angle = static_cast<double>(static_cast<float>(p) * turn);
      *out++ = static_cast<float>(std::cos(angle)) * scale;
      *out++ = static_cast<float>(std::sin(angle)) * scale;
    }
  }
  return table;
}

void Rotate(const Rope& rope, const float* angles, const float* x, float* out) {
  const uint32_t half = rope.width / 2, next = rope.pairs ? 1 : half, step = rope.pairs ? 2 : 1;
  for (uint32_t i = 0; i < half; ++i) {
    const float c = angles[2 * i], s = angles[2 * i + 1];
    const float a = x[i * step], b = x[i * step + next];
    out[i] = a * c - b * s;
    out[i + half] = b * c + a * s;
  }
}

}  // namespace tangram::model
