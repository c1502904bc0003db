// BF16 as its bits.
#ifndef AGENT_VLLM_OPS_BF16_H_
#define AGENT_VLLM_OPS_BF16_H_

#include <bit>
#include <cstdint>

namespace tangram::experts {

inline float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to the nearest, ties to even. NaN stays NaN.
inline uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tangram::experts

#endif  // AGENT_VLLM_OPS_BF16_H_
