#include "agent/device/hash.h"

#include <algorithm>
#include <new>

#include "agent/device/hash_kernel.h"

namespace tangram::device {
namespace {

const HashKernel& Kernel() {
#if defined(__x86_64__)
  // AVX-512 would hash cached bytes even faster, but on some processors it slows down all SSE code
  // that runs after it (docs/performance.md).
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return kHashAvx2;
#endif
  return kHashBase;
}

}  // namespace

uint64_t HashOf(std::span<const std::byte> bytes) {
  return std::max<uint64_t>(Kernel().hash(bytes.data(), bytes.size()), 1);
}

void Hasher::Free::operator()(void* state) const { Kernel().free(state); }

Hasher::Hasher() : state_(Kernel().create()) {
  if (state_ == nullptr) throw std::bad_alloc();
}

void Hasher::Add(std::span<const std::byte> bytes) {
  Kernel().add(state_.get(), bytes.data(), bytes.size());
}

uint64_t Hasher::Value() const { return std::max<uint64_t>(Kernel().value(state_.get()), 1); }

}  // namespace tangram::device
