// Copy and hash of the host's device, next to memcpy: 64 KiB fits in a cache, 64 MiB in no cache of
// a core. Bytes are counted once.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "agent/device/hash.h"
#include "agent/device/host.h"

namespace tangram::device {
namespace {

struct Buffers {
  explicit Buffers(const benchmark::State& state)
      : device(HostDevice::Importer({})),
        from(static_cast<size_t>(state.range(0)), std::byte{1}),
        to(from.size(), std::byte{2}) {}
  std::unique_ptr<HostDevice> device;
  std::vector<std::byte> from, to;
};

void Count(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Memcpy(benchmark::State& state) {
  Buffers buffers(state);
  for (auto _ : state) {
    std::memcpy(buffers.to.data(), buffers.from.data(), buffers.to.size());
    benchmark::ClobberMemory();
  }
  Count(state);
}

void Copy(benchmark::State& state) {
  Buffers buffers(state);
  const CopyOp op{Memory::Own(buffers.to), Memory::Own(buffers.from)};
  for (auto _ : state) {
    if (!buffers.device->Copy({&op, 1}).Wait().ok()) return state.SkipWithError("copy");
  }
  Count(state);
}

void CopyAndHash(benchmark::State& state) {
  Buffers buffers(state);
  uint64_t hash = 0;
  const CopyOp op{Memory::Own(buffers.to), Memory::Own(buffers.from), &hash};
  for (auto _ : state) {
    if (!buffers.device->Copy({&op, 1}).Wait().ok()) return state.SkipWithError("copy");
    benchmark::DoNotOptimize(hash);
  }
  Count(state);
}

void Hash(benchmark::State& state) {
  const Buffers buffers(state);
  for (auto _ : state) benchmark::DoNotOptimize(HashOf(buffers.from));
  Count(state);
}

constexpr int64_t kInACache = 64 << 10, kInNone = 64 << 20;
BENCHMARK(Memcpy)->Arg(kInACache)->Arg(kInNone);
BENCHMARK(Copy)->Arg(kInACache)->Arg(kInNone);
BENCHMARK(CopyAndHash)->Arg(kInACache)->Arg(kInNone);
BENCHMARK(Hash)->Arg(kInACache)->Arg(kInNone);

}  // namespace
}  // namespace tangram::device
