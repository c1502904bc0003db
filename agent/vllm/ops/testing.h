// Layers with random weights, for tests and benches: the same values in either format.
#ifndef AGENT_VLLM_OPS_TESTING_H_
#define AGENT_VLLM_OPS_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "agent/vllm/ops/bf16.h"
#include "agent/vllm/ops/experts.h"

namespace tangram::experts::testing {

struct Size {
  uint32_t hidden, granule_rows, granules, experts, top_k;
};

// All experts of a layer, each as pieces of `cut` granules (the last may be narrower).
class Layer {
 public:
  Layer(const Size& size, uint32_t element, uint32_t format, uint32_t cut, uint32_t padding = 0,
        uint32_t seed = 1)
      : size_(size), shape_{size.hidden, size.granule_rows, element, format}, padding_(padding) {
    const uint32_t inner = Inner();
    for (uint32_t e = 0; e < size.experts; ++e) {
      const uint32_t first = seed * 1000 + 3 * e;
      gate_.push_back(Random(size_t{inner} * size.hidden, first));
      up_.push_back(Random(size_t{inner} * size.hidden, first + 1));
      down_.push_back(Random(size_t{inner} * size.hidden, first + 2));
      for (uint32_t g = 0; g < size.granules; g += cut) Add(e, g, std::min(cut, size.granules - g));
    }
  }

  uint32_t Inner() const { return size_.granule_rows * size_.granules; }
  const Size& size() const { return size_; }
  const tg_experts_shape& shape() const { return shape_; }
  std::vector<tg_experts_piece>& pieces() { return pieces_; }
  // Weights of expert e; gate and up [inner, hidden], down [hidden, inner].
  float gate(uint32_t e, uint32_t j, uint32_t h) const {
    return gate_[e][size_t{j} * size_.hidden + h];
  }
  float up(uint32_t e, uint32_t j, uint32_t h) const {
    return up_[e][size_t{j} * size_.hidden + h];
  }
  float down(uint32_t e, uint32_t h, uint32_t j) const { return down_[e][size_t{h} * Inner() + j]; }

 private:
  std::vector<float> Random(size_t count, uint32_t seed) const {
    std::minstd_rand random(seed + 1);
    std::uniform_real_distribution<float> values(-0.5F, 0.5F);
    std::vector<float> out(count);
    for (float& v : out)
      v = shape_.element == TG_EXPERTS_F32 ? values(random) : FromBf16(ToBf16(values(random)));
    return out;
  }

  void Add(uint32_t e, uint32_t first, uint32_t granules) {
    const uint32_t h = size_.hidden, r = size_.granule_rows;
    std::vector<float> values;
    tg_experts_piece piece{nullptr, nullptr, nullptr, 0, 0, e, granules};
    size_t up = 0, down = 0;
    if (shape_.format == TG_EXPERTS_GRANULE_MAJOR) {
      for (uint32_t g = first; g < first + granules; ++g) {
        Lines(gate_[e], g * r, r, &values, 0);
        Lines(up_[e], g * r, r, &values, 0);
        for (uint32_t j = g * r; j < (g + 1) * r; ++j)
          for (uint32_t c = 0; c < h; ++c) values.push_back(this->down(e, c, j));
      }
    } else {
      const uint32_t rows = granules * r;
      piece.row_pitch = h + padding_;
      piece.down_pitch = rows + padding_;
      Lines(gate_[e], first * r, rows, &values, padding_);
      up = values.size();
      Lines(up_[e], first * r, rows, &values, padding_);
      down = values.size();
      for (uint32_t c = 0; c < h; ++c) {
        for (uint32_t j = first * r; j < first * r + rows; ++j)
          values.push_back(this->down(e, c, j));
        values.insert(values.end(), padding_, 1e9F);  // reveals any read of the padding
      }
    }
    const uint8_t* base = Store(values);
    const size_t bytes = shape_.element == TG_EXPERTS_F32 ? 4 : 2;
    piece.gate = base;
    if (shape_.format == TG_EXPERTS_ROW_MAJOR) {
      piece.up = base + up * bytes;
      piece.down = base + down * bytes;
    }
    pieces_.push_back(piece);
  }

  void Lines(const std::vector<float>& from, uint32_t first, uint32_t count, std::vector<float>* to,
             uint32_t padding) const {
    for (uint32_t j = first; j < first + count; ++j) {
      const float* row = from.data() + size_t{j} * size_.hidden;
      to->insert(to->end(), row, row + size_.hidden);
      to->insert(to->end(), padding, 1e9F);
    }
  }

  const uint8_t* Store(const std::vector<float>& values) {
    std::vector<uint8_t>& bytes = memory_.emplace_back();
    if (shape_.element == TG_EXPERTS_F32) {
      bytes.resize(values.size() * 4);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      for (float v : values) {
        const uint16_t bits = ToBf16(v);
        bytes.insert(bytes.end(), {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)});
      }
    }
    return bytes.data();
  }

  Size size_;
  tg_experts_shape shape_;
  uint32_t padding_;
  std::vector<std::vector<float>> gate_, up_, down_;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<tg_experts_piece> pieces_;
};

// Rows with their routes: each row has top_k different experts.
struct Rows {
  Rows(const Size& size, uint32_t rows, uint32_t seed) : count(rows) {
    std::minstd_rand random(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    for (size_t i = 0; i < size_t{rows} * size.hidden; ++i) x.push_back(values(random));
    for (uint32_t row = 0; row < rows; ++row) {
      const auto first = static_cast<uint32_t>(random() % size.experts);
      for (uint32_t k = 0; k < size.top_k; ++k) {
        ids.push_back(static_cast<int32_t>((first + k * (1 + row % 3)) % size.experts));
        weights.push_back(std::abs(values(random)));
      }
    }
  }
  uint32_t count;
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
};

}  // namespace tangram::experts::testing

#endif  // AGENT_VLLM_OPS_TESTING_H_
