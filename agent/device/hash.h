// The hash of bytes, wherever hashes are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tangram::device {

// XXH3-64, but never 0, which means "no hash".
uint64_t HashOf(std::span<const std::byte> bytes);

}  // namespace tangram::device
