#include "e2e/engine/model/fixed.h"

#include <fmt/core.h>

#include <cmath>

namespace tangram::model {
namespace {

constexpr double kScale = static_cast<double>(int64_t{1} << kFixedBits);

}  // namespace

Status AccumulateFixed(std::span<const float> partial, std::span<int64_t> acc, const char* what) {
  // One pass without branches; only a failure searches for the bad element.
  bool bad = false;
  for (size_t i = 0; i < partial.size(); ++i) {
    const float v = partial[i];
    const bool fits = std::fabs(v) < kFixedLimit;  // false for NaN
    const int64_t fixed = std::llrint(fits ? static_cast<double>(v) * kScale : 0.0);
    int64_t sum;
    bad |= !fits | __builtin_add_overflow(acc[i], fixed, &sum);
    acc[i] = sum;
  }
  if (!bad) return OkStatus();
  for (size_t i = 0; i < partial.size(); ++i) {
    if (!(std::fabs(partial[i]) < kFixedLimit)) {
      return Status(Code::kInternal,
                    fmt::format("{}: partial {} at element {} does not fit 64-bit fixed point of "
                                "unit 2^-{} (limit {}): the weights or the KV are damaged, or the "
                                "model needs a coarser unit",
                                what, partial[i], i, kFixedBits, kFixedLimit));
    }
  }
  return Status(Code::kInternal, fmt::format("{}: the sum of partials leaves 64-bit fixed point "
                                             "of unit 2^-{}",
                                             what, kFixedBits));
}

Status AddFixed(std::span<const int64_t> other, std::span<int64_t> acc) {
  bool bad = false;
  for (size_t i = 0; i < other.size(); ++i) {
    bad |= __builtin_add_overflow(acc[i], other[i], &acc[i]);
  }
  if (!bad) return OkStatus();
  return Status(Code::kInternal,
                fmt::format("sum of ranks leaves 64-bit fixed point of unit 2^-{}", kFixedBits));
}

void AddToResidual(std::span<const int64_t> acc, std::span<float> x) {
  for (size_t i = 0; i < acc.size(); ++i) {
    x[i] += static_cast<float>(static_cast<double>(acc[i]) * (1.0 / kScale));
  }
}

}  // namespace tangram::model
