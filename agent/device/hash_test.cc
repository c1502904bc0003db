// Hashes are stored in files and sent to other agents, so every instruction set must give those of
// the library.
#include "agent/device/hash.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <vector>

#include "agent/device/hash_kernel.h"
#include "agent/device/host.h"

namespace tangram::device {
namespace {

std::vector<std::byte> Random(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = std::byte(random());
  return out;
}

// From zero over every path of the library (16, 128, 240, 1,024 bytes) to many stripes.
std::vector<size_t> Sizes() {
  std::vector<size_t> out;
  for (size_t bytes = 0; bytes < 1100; ++bytes) out.push_back(bytes);
  for (const size_t bytes : {4096, 65537, (1 << 20) - 3}) out.push_back(bytes);
  return out;
}

TEST(Hash, MatchesXxh3ForEveryKernel) {
  std::vector<const HashKernel*> kernels{&kHashBase};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&kHashAvx2);
#endif
  for (const size_t size : Sizes()) {
    const std::vector<std::byte> bytes = Random(size, static_cast<uint32_t>(size));
    const uint64_t expected = XXH3_64bits(bytes.data(), size);
    EXPECT_EQ(HashOf(bytes), std::max<uint64_t>(expected, 1));
    for (const HashKernel* kernel : kernels) {
      ASSERT_EQ(kernel->hash(bytes.data(), size), expected) << size;
      void* state = kernel->create();
      const size_t cut = size / 3;
      kernel->add(state, bytes.data(), cut);
      kernel->add(state, bytes.data() + cut, size - cut);
      EXPECT_EQ(kernel->value(state), expected) << size;
      kernel->free(state);
    }
  }
}

TEST(Hash, CopyHashMatchesHashOfBytes) {
  const auto device = HostDevice::Importer({});
  for (const size_t size : {size_t{0}, size_t{1000}, size_t{256 << 10}, size_t{(1 << 20) + 17}}) {
    std::vector<std::byte> from = Random(size, 7);
    std::vector<std::byte> to(size);
    uint64_t hash = 0;
    const CopyOp op{Memory::Own(to), Memory::Own(from), &hash};
    ASSERT_TRUE(device->Copy({&op, 1}).Wait().ok());
    EXPECT_EQ(to, from);
    EXPECT_EQ(hash, HashOf(from));
  }
}

}  // namespace
}  // namespace tangram::device
