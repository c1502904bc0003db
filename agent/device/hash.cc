#include "agent/device/hash.h"

#include <xxhash.h>

#include <algorithm>

namespace tangram::device {

uint64_t HashOf(std::span<const std::byte> bytes) {
  return std::max<uint64_t>(XXH3_64bits(bytes.data(), bytes.size()), 1);
}

}  // namespace tangram::device
