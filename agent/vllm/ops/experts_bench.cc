// The cost of a layer in which most experts are used: hidden 2048, 64 experts of 768 rows, top 8.
// GB/s counts the weights read; a memory copy on the same machine is the ceiling.
#include <benchmark/benchmark.h>

#include <memory>
#include <set>
#include <vector>

#include "agent/vllm/ops/testing.h"

namespace tangram::experts {
namespace {

using testing::Layer;
using testing::Rows;
using testing::Size;

constexpr Size kSize{2048, 16, 48, 64, 8};

// One layer at a time: in F32 it takes 1.2 GB.
Layer& Weights(uint32_t element, uint32_t format) {
  static std::unique_ptr<Layer> layer;
  if (!layer || layer->shape().element != element || layer->shape().format != format) {
    layer.reset();
    layer = std::make_unique<Layer>(kSize, element, format, kSize.granules);
  }
  return *layer;
}

// Calls cycle through rows with different experts, so that weights come from memory, as in a model
// with many layers.
void Run(benchmark::State& state) {
  const auto element = static_cast<uint32_t>(state.range(0)),
             format = static_cast<uint32_t>(state.range(1));
  const auto count = static_cast<uint32_t>(state.range(2)),
             kernel = static_cast<uint32_t>(state.range(3));
  if (!tg_experts_has(kernel)) return state.SkipWithError("this processor has no such kernel");
  Layer& layer = Weights(element, format);
  tg_experts* handle = tg_experts_open(1);
  std::vector<Rows> batches;
  for (uint32_t seed = 0; seed < 8; ++seed) batches.emplace_back(kSize, count, seed * 77 + 1);
  size_t at = 0, experts = 0;
  std::vector<float> y(size_t{count} * kSize.hidden);
  for (auto _ : state) {
    const Rows& rows = batches[at++ % batches.size()];
    tg_experts_run(handle, &layer.shape(), layer.pieces().data(), layer.pieces().size(), kernel,
                   rows.x.data(), rows.ids.data(), rows.weights.data(), count, kSize.top_k,
                   y.data(), nullptr, 0);
    experts += std::set<int32_t>(rows.ids.begin(), rows.ids.end()).size();
  }
  tg_experts_close(handle);
  const size_t expert =
      size_t{3} * kSize.hidden * layer.Inner() * (element == TG_EXPERTS_F32 ? 4 : 2);
  state.SetBytesProcessed(static_cast<int64_t>(experts * expert));
  state.counters["experts"] =
      static_cast<double>(experts) / static_cast<double>(state.iterations());
}
BENCHMARK(Run)
    ->ArgNames({"element", "format", "rows", "kernel"})
    ->ArgsProduct({{TG_EXPERTS_F32, TG_EXPERTS_BF16},
                   {TG_EXPERTS_GRANULE_MAJOR, TG_EXPERTS_ROW_MAJOR},
                   {1, 16, 256},
                   {TG_EXPERTS_AVX512, TG_EXPERTS_AVX512_BF16}})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(Run)
    ->ArgNames({"element", "format", "rows", "kernel"})
    ->ArgsProduct({{TG_EXPERTS_F32, TG_EXPERTS_BF16},
                   {TG_EXPERTS_GRANULE_MAJOR},
                   {1, 16},
                   {TG_EXPERTS_PLAIN}})
    ->Unit(benchmark::kMicrosecond);

// The ceiling: bytes read and summed.
void Read(benchmark::State& state) {
  std::vector<uint64_t> from(size_t{64} << 20 >> 3, 1);
  for (auto _ : state) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < from.size(); i += 8)
      for (size_t j = 0; j < 8; ++j) sums[j] += from[i + j];
    benchmark::DoNotOptimize(sums);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * from.size() * 8));
}
BENCHMARK(Read)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tangram::experts
