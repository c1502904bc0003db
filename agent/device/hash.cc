#include "agent/device/hash.h"

#include <xxhash.h>

#include <algorithm>
#include <new>

namespace tangram::device {

uint64_t HashOf(std::span<const std::byte> bytes) {
  return std::max<uint64_t>(XXH3_64bits(bytes.data(), bytes.size()), 1);
}

void Hasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Hasher::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Hasher::Value() const { return std::max<uint64_t>(XXH3_64bits_digest(state_.get()), 1); }

}  // namespace tangram::device
