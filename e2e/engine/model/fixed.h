// Sums that no order, shard, replica or batch can change: every fp32 partial becomes a
// 64-bit fixed-point number of unit 2^-40 and is added as an integer (architecture 8,
// "Numbers").
#pragma once

#include <cstdint>
#include <span>

#include "agent/base/status.h"

namespace tangram::model {

constexpr int kFixedBits = 40;
// |value| of one partial must stay below 2^18 (2^58 in fixed point), so that up to 2^5 partials of
// one sign at the limit add up without a wrap.
constexpr float kFixedLimit = 262144.0f;

// acc[i] += round_to_even(partial[i] * 2^40). kInternal on a partial that is not finite,
// is at or beyond kFixedLimit, or makes the sum wrap; acc is then undefined. `what` names
// the partial in the message.
Status AccumulateFixed(std::span<const float> partial, std::span<int64_t> acc, const char* what);

// acc[i] += other[i], sums of partials computed elsewhere. kInternal when a sum wraps.
Status AddFixed(std::span<const int64_t> other, std::span<int64_t> acc);

// x[i] += acc[i] * 2^-40, one rounding for the conversion and one for the sum.
void AddToResidual(std::span<const int64_t> acc, std::span<float> x);

}  // namespace tangram::model
