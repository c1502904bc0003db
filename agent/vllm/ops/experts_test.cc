#include "agent/vllm/ops/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/vllm/ops/testing.h"

namespace tangram::experts {
namespace {

using ::testing::HasSubstr;
using testing::Layer;
using testing::Rows;
using testing::Size;

constexpr uint32_t kElements[] = {TG_EXPERTS_F32, TG_EXPERTS_BF16};
constexpr uint32_t kFormats[] = {TG_EXPERTS_GRANULE_MAJOR, TG_EXPERTS_ROW_MAJOR};

// The kernels that this processor supports. Others need another machine.
std::vector<uint32_t> Kernels() {
  std::vector<uint32_t> out;
  for (uint32_t kernel : {TG_EXPERTS_PLAIN, TG_EXPERTS_AVX512, TG_EXPERTS_AVX512_BF16})
    if (tg_experts_has(kernel)) out.push_back(kernel);
  return out;
}

std::vector<uint8_t> Elements(const std::vector<float>& from, uint32_t element) {
  std::vector<uint8_t> out(from.size() * (element == TG_EXPERTS_F32 ? 4 : 2));
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t bits = ToBf16(from[i]);
    if (element == TG_EXPERTS_F32) {
      std::memcpy(&out[4 * i], &from[i], 4);
    } else {
      std::memcpy(&out[2 * i], &bits, 2);
    }
  }
  return out;
}

std::vector<float> Floats(const std::vector<uint8_t>& from, uint32_t element) {
  std::vector<float> out(from.size() / (element == TG_EXPERTS_F32 ? 4 : 2));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    if (element == TG_EXPERTS_F32) {
      std::memcpy(&out[i], &from[4 * i], 4);
    } else {
      std::memcpy(&bits, &from[2 * i], 2);
      out[i] = FromBf16(bits);
    }
  }
  return out;
}

struct Close {
  void operator()(tg_experts* experts) const { tg_experts_close(experts); }
};
using Handle = std::unique_ptr<tg_experts, Close>;

std::vector<float> Compute(Layer& layer, const Rows& rows, uint32_t kernel, uint32_t threads = 1) {
  const Handle handle(tg_experts_open(threads));
  std::vector<float> y(rows.x.size());
  char message[200] = "";
  EXPECT_EQ(
      tg_experts_run(handle.get(), &layer.shape(), layer.pieces().data(), layer.pieces().size(),
                     kernel, rows.x.data(), rows.ids.data(), rows.weights.data(), rows.count,
                     layer.size().top_k, y.data(), message, sizeof message),
      0)
      << message;
  return y;
}

// Each number computed alone, in double except for the documented roundings. `scale`: the sum of
// the absolute values of y's terms.
struct Expected {
  std::vector<double> y, scale;
};

Expected Slowly(const Layer& layer, const Rows& rows) {
  const Size& size = layer.size();
  const bool bf16 = layer.shape().element == TG_EXPERTS_BF16;
  const auto rounded = [&](double v) { return bf16 ? FromBf16(ToBf16(static_cast<float>(v))) : v; };
  Expected out{std::vector<double>(rows.x.size()), std::vector<double>(rows.x.size())};
  for (uint32_t row = 0; row < rows.count; ++row)
    for (uint32_t k = 0; k < size.top_k; ++k) {
      const auto e = static_cast<uint32_t>(rows.ids[row * size.top_k + k]);
      if (e >= size.experts) continue;
      const double weight = rows.weights[row * size.top_k + k];
      for (uint32_t j = 0; j < layer.Inner(); ++j) {
        double gate = 0, up = 0;
        for (uint32_t h = 0; h < size.hidden; ++h) {
          const double x = rounded(rows.x[row * size.hidden + h]);
          gate += layer.gate(e, j, h) * x;
          up += layer.up(e, j, h) * x;
        }
        const double act = rounded(gate / (1 + std::exp(-gate)) * up);
        for (uint32_t h = 0; h < size.hidden; ++h) {
          const double term = weight * act * layer.down(e, h, j);
          out.y[row * size.hidden + h] += term;
          out.scale[row * size.hidden + h] += std::abs(term);
        }
      }
    }
  return out;
}

// BF16: an activation may round the other way in F32 than in double, and is then off by half of
// 2^-8.
void ExpectNear(const std::vector<float>& y, const Expected& expected, uint32_t element) {
  const double tolerance = element == TG_EXPERTS_F32 ? 2e-6 : 3e-3;
  for (size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(y[i], expected.y[i], tolerance * expected.scale[i] + 1e-6) << i;
}

// Sizes that are multiples of nothing, and rows for every way to process four together.
TEST(Experts, MatchReferenceInEveryFormatElementAndKernel) {
  for (const Size& size :
       {Size{64, 8, 6, 5, 2}, Size{72, 5, 3, 7, 3}, Size{33, 1, 1, 2, 1}, Size{160, 48, 2, 3, 3}})
    for (uint32_t element : kElements)
      for (uint32_t format : kFormats)
        for (uint32_t count : {1U, 2U, 3U, 4U, 17U}) {
          Layer layer(size, element, format, 2, format == TG_EXPERTS_ROW_MAJOR ? 3 : 0);
          const Rows rows(size, count, count);
          const Expected expected = Slowly(layer, rows);
          for (uint32_t kernel : Kernels()) {
            SCOPED_TRACE(::testing::Message()
                         << "hidden " << size.hidden << " element " << element << " format "
                         << format << " rows " << count << " kernel " << kernel);
            ExpectNear(Compute(layer, rows, kernel), expected, element);
          }
        }
}

// This guarantee makes a request's tokens independent of other requests.
TEST(Experts, ComputeSameBitsInAnyBatchAndThreadCount) {
  const Size size{200, 12, 5, 6, 2};
  for (uint32_t element : kElements)
    for (uint32_t format : kFormats)
      for (uint32_t kernel : Kernels()) {
        SCOPED_TRACE(::testing::Message()
                     << "element " << element << " format " << format << " kernel " << kernel);
        Layer layer(size, element, format, 2);
        Rows all(size, 23, 4);
        const std::vector<float> y = Compute(layer, all, kernel);
        EXPECT_EQ(Compute(layer, all, kernel, 3), y);
        for (uint32_t row = 0; row < all.count; ++row) {
          Rows one(size, 1, 1);
          one.x.assign(all.x.begin() + row * size.hidden, all.x.begin() + (row + 1) * size.hidden);
          one.ids.assign(all.ids.begin() + row * 2, all.ids.begin() + row * 2 + 2);
          one.weights.assign(all.weights.begin() + row * 2, all.weights.begin() + row * 2 + 2);
          const std::vector<float> alone = Compute(layer, one, kernel);
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + row * size.hidden))
              << "row " << row;
        }
      }
}

// As on the ranks of a world: their sums add up to the whole.
TEST(Experts, SumPiecesOfTwoRanksToWhole) {
  const Size size{96, 8, 6, 8, 3};
  for (uint32_t format : kFormats) {
    Layer layer(size, TG_EXPERTS_F32, format, 4);
    const Rows rows(size, 9, 2);
    const Expected expected = Slowly(layer, rows);
    const std::vector<tg_experts_piece> all = layer.pieces();
    std::vector<float> sum(rows.x.size());
    for (size_t rank = 0; rank < 2; ++rank) {
      layer.pieces().clear();
      for (size_t i = rank; i < all.size(); i += 2) layer.pieces().push_back(all[i]);
      const std::vector<float> y = Compute(layer, rows, TG_EXPERTS_DEFAULT);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
    }
    ExpectNear(sum, expected, TG_EXPERTS_F32);
  }
}

TEST(Experts, IgnoreIdsWithoutPiece) {
  const Size size{40, 4, 2, 3, 2};
  Layer layer(size, TG_EXPERTS_F32, TG_EXPERTS_GRANULE_MAJOR, 2);
  Rows rows(size, 5, 3);
  for (uint32_t row = 0; row < 4; ++row) rows.ids[2 * row] = static_cast<int32_t>(3 + row * 1000);
  rows.ids[8] = rows.ids[9] = -1;
  const std::vector<float> y = Compute(layer, rows, TG_EXPERTS_DEFAULT);
  EXPECT_EQ(std::vector<float>(y.end() - size.hidden, y.end()), std::vector<float>(size.hidden));
  ExpectNear(y, Slowly(layer, rows), TG_EXPERTS_F32);
}

TEST(Experts, AddToExistingOutput) {
  const Size size{32, 4, 2, 3, 2};
  Layer layer(size, TG_EXPERTS_F32, TG_EXPERTS_GRANULE_MAJOR, 2);
  const Rows rows(size, 2, 3);
  const Handle handle(tg_experts_open(1));
  const std::vector<float> once = Compute(layer, rows, TG_EXPERTS_DEFAULT);
  std::vector<float> y = once;
  ASSERT_EQ(tg_experts_run(handle.get(), &layer.shape(), layer.pieces().data(),
                           layer.pieces().size(), 0, rows.x.data(), rows.ids.data(),
                           rows.weights.data(), 2, 2, y.data(), nullptr, 0),
            0);
  for (size_t i = 0; i < y.size(); ++i)
    EXPECT_NEAR(y[i], 2 * once[i], 1e-5 * std::abs(once[i]) + 1e-6);
}

TEST(Experts, RejectInvalidArguments) {
  const Size size{32, 4, 2, 3, 2};
  Layer layer(size, TG_EXPERTS_BF16, TG_EXPERTS_ROW_MAJOR, 2);
  const Rows rows(size, 2, 3);
  const Handle handle(tg_experts_open(1));
  EXPECT_EQ(tg_experts_open(0), nullptr);
  EXPECT_EQ(tg_experts_open(1000), nullptr);
  EXPECT_EQ(tg_experts_has(17), 0);
  const auto refused = [&](tg_experts_shape shape, tg_experts_piece piece, uint32_t kernel,
                           const float* x = nullptr) {
    char message[200] = "";
    std::vector<float> y(rows.x.size(), 7);
    EXPECT_EQ(tg_experts_run(handle.get(), &shape, &piece, 1, kernel,
                             x == nullptr ? rows.x.data() : x, rows.ids.data(), rows.weights.data(),
                             2, 2, y.data(), message, sizeof message),
              1);
    EXPECT_EQ(y, std::vector<float>(rows.x.size(), 7));
    return std::string(message);
  };
  const tg_experts_shape shape = layer.shape();
  const tg_experts_piece piece = layer.pieces()[1];
  tg_experts_shape other = shape;
  other.element = 4;
  EXPECT_THAT(refused(other, piece, 0), HasSubstr("element 4"));
  other = shape;
  other.format = 3;
  EXPECT_THAT(refused(other, piece, 0), HasSubstr("format 3"));
  other = shape;
  other.hidden = 0;
  EXPECT_THAT(refused(other, piece, 0), HasSubstr("hidden 0"));
  EXPECT_THAT(refused(shape, piece, 17), HasSubstr("no kernel 17"));
  tg_experts_piece bad = piece;
  bad.up = nullptr;
  EXPECT_THAT(refused(shape, bad, 0), HasSubstr("expert 1"));
  bad = piece;
  bad.down = static_cast<const uint8_t*>(piece.down) + 1;
  EXPECT_THAT(refused(shape, bad, 0), HasSubstr("no address"));
  bad = piece;
  bad.row_pitch = 31;
  EXPECT_THAT(refused(shape, bad, 0), HasSubstr("pitches 31"));
  bad = piece;
  bad.granules = 0;
  EXPECT_THAT(refused(shape, bad, 0), HasSubstr("0 granules"));
  char message[200] = "";
  EXPECT_EQ(tg_experts_run(handle.get(), &shape, &piece, 1, 0, nullptr, rows.ids.data(),
                           rows.weights.data(), 2, 2, nullptr, message, sizeof message),
            1);
  EXPECT_THAT(message, HasSubstr("x, ids"));
}

// Every row alone, for any number of rows and columns, with all kernels and threads.
TEST(Linear, ComputesProductWithSameBitsInAnyBatch) {
  constexpr uint32_t kPitchBeyond = 3;
  for (const uint32_t element : kElements) {
    for (const auto& [n, k] : {std::pair(1U, 1U), {37U, 40U}, {64U, 96U}, {130U, 257U}}) {
      const Size size{k, n, 1, 1, 1};
      Layer layer(size, element, TG_EXPERTS_GRANULE_MAJOR, 1);
      const void* const weight = layer.pieces()[0].gate;  // [n, k]
      for (const uint32_t rows : {1U, 2U, 3U, 4U, 5U, 9U}) {
        const Rows given(size, rows, 7);
        std::vector<uint8_t> x = Elements(given.x, element);
        for (const uint32_t kernel : Kernels()) {
          std::vector<float> alone;
          for (const uint32_t threads : {1U, 3U}) {
            const Handle handle(tg_experts_open(threads));
            const size_t bytes = element == TG_EXPERTS_F32 ? 4 : 2, pitch = n + kPitchBeyond;
            std::vector<uint8_t> y(rows * pitch * bytes, 0x5a);
            char message[200] = "";
            ASSERT_EQ(tg_experts_linear(handle.get(), element, weight, n, k, kernel, x.data(), rows,
                                        y.data(), pitch, message, sizeof message),
                      0)
                << message;
            const std::vector<float> got = Floats(y, element);
            const std::vector<float> in = Floats(x, element);
            for (uint32_t row = 0; row < rows; ++row) {
              for (uint32_t j = 0; j < n; ++j) {
                double expected = 0, scale = 0;
                for (uint32_t i = 0; i < k; ++i) {
                  const double product = double{in[row * k + i]} * layer.gate(0, j, i);
                  expected += product;
                  scale += std::abs(product);
                }
                const double error = element == TG_EXPERTS_F32
                                         ? 1e-6 * scale
                                         : 1e-6 * scale + 0.004 * std::abs(expected);
                ASSERT_NEAR(got[row * pitch + j], expected, error + 1e-30);
              }
              for (uint32_t beyond = n; beyond < pitch; ++beyond)
                ASSERT_EQ(y[(row * pitch + beyond) * bytes], 0x5a);
              std::vector<uint8_t> one(n * bytes);
              ASSERT_EQ(tg_experts_linear(handle.get(), element, weight, n, k, kernel,
                                          x.data() + row * k * bytes, 1, one.data(), n, message,
                                          sizeof message),
                        0);
              ASSERT_EQ(0, std::memcmp(one.data(), y.data() + row * pitch * bytes, n * bytes))
                  << "row " << row << " of " << rows << ", " << n << " x " << k << ", kernel "
                  << kernel << ", " << threads << " threads";
            }
          }
        }
      }
    }
  }
}

TEST(Linear, RejectsInvalidArguments) {
  const Handle handle(tg_experts_open(1));
  const float one = 1;
  float y = 5;
  char message[200] = "";
  const auto refused = [&](uint32_t element, const void* weight, uint32_t k, size_t pitch) {
    EXPECT_EQ(tg_experts_linear(handle.get(), element, weight, 1, k, 0, &one, 1, &y, pitch, message,
                                sizeof message),
              1);
    EXPECT_EQ(y, 5);
    return std::string(message);
  };
  EXPECT_THAT(refused(3, &one, 1, 1), HasSubstr("element 3"));
  EXPECT_THAT(refused(TG_EXPERTS_F32, nullptr, 1, 1), HasSubstr("weight, x or y"));
  EXPECT_THAT(refused(TG_EXPERTS_F32, &one, 0, 1), HasSubstr("k is 0"));
  EXPECT_THAT(refused(TG_EXPERTS_F32, &one, 1, 0), HasSubstr("0 apart, of 1"));
}

}  // namespace
}  // namespace tangram::experts
