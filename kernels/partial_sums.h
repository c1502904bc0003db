// Kernel `partial_sums`: sums that do not depend on the order. Each fp32 number becomes an integer
// of unit 2^-40 and is added as such (docs/architecture.md, section 8, "Numbers").
#pragma once

#include "kernels/parameters.h"
#include "kernels/work.h"

namespace tangram::kernels {

// |number| of a partial must be less than 2^18, so that it is less than 2^58 as an integer.
constexpr uint32_t kFixedBits = 40, kFixedLimitBits = 18;

// Converts the bits of an fp32 number to the nearest integer of unit 2^-40, ties to even; false for
// NaN and for magnitudes at or above the limit. Uses integers only: a GPU with few fp64 units is
// not slowed down, and compiler flags do not matter.
TANGRAM_DEVICE bool ToFixed(uint32_t bits, int64_t* out) {
  constexpr uint32_t kBias = 127, kMantissaBits = 23;
  const uint32_t exponent = bits >> kMantissaBits & 0xff;
  if (exponent >= kBias + kFixedLimitBits) return false;
  // Subnormals, and numbers with smaller shifts than below, are less than half a unit.
  const uint64_t mantissa = (bits & ((1u << kMantissaBits) - 1)) | 1u << kMantissaBits;
  const int32_t shift =
      static_cast<int32_t>(exponent + kFixedBits) - static_cast<int32_t>(kBias + kMantissaBits);
  uint64_t magnitude = 0;
  if (shift >= 0) {
    magnitude = mantissa << shift;
  } else if (shift >= -static_cast<int32_t>(kMantissaBits + 1)) {
    const auto down = static_cast<uint32_t>(-shift);
    const uint64_t half = uint64_t{1} << (down - 1), rest = mantissa & (2 * half - 1);
    magnitude = mantissa >> down;
    if (rest > half || (rest == half && magnitude % 2 != 0)) ++magnitude;
  }
  *out = bits >> 31 != 0 ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

// Neighbouring threads take neighbouring elements, each of all partials.
template <typename Memory>
TANGRAM_DEVICE void PartialSums(const Where& where, const PartialSumsParameters& p,
                                Memory& memory) {
  const Share share = ShareOf(p.elements, where.block, where.blocks);
  for (uint64_t i = share.begin + where.thread; i < share.end; i += where.threads) {
    memory.Round();
    const uint64_t at = p.sums + i * sizeof(int64_t);
    auto sum = static_cast<int64_t>(memory.template Load<uint64_t>(at));
    bool good = true;
    for (uint64_t k = 0; k < p.count; ++k) {
      const auto bits =
          memory.template Load<uint32_t>(p.partials + k * p.pitch + i * sizeof(float));
      int64_t fixed = 0;
      good = ToFixed(bits, &fixed) && good;
      // Overflow: both operands have one sign, and the sum has the other.
      const auto next =
          static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(fixed));
      good = good && ((sum ^ next) & (fixed ^ next)) >= 0;
      sum = next;
    }
    memory.template Store<uint64_t>(at, static_cast<uint64_t>(sum));
    if (!good) memory.Least(p.bad, i);
  }
}

}  // namespace tangram::kernels
