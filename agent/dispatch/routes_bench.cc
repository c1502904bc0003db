// The cost of a flip: the table of routes of 58 layers of 256 experts (DeepSeek-V3).
#include <benchmark/benchmark.h>

#include "agent/dispatch/routes.h"
#include "agent/dispatch/testing/layout.h"

namespace {

using tangram::dispatch::Routes;
using tangram::dispatch::testing::Layout;
using tangram::dispatch::testing::Placed;

constexpr uint32_t kLayers = 58, kExperts = 256;

// Each expert is cut over groups of `shards` ranks.
void Table(benchmark::State& state) {
  const auto ranks = static_cast<uint32_t>(state.range(0)),
             shards = static_cast<uint32_t>(state.range(1));
  Layout layout(ranks, kExperts);
  for (uint32_t l = 0; l < kLayers; ++l) {
    std::vector<Placed> experts(kExperts);
    for (uint32_t e = 0; e < kExperts; ++e) {
      experts[e].emplace_back();
      for (uint32_t s = 0; s < shards; ++s)
        experts[e][0].push_back({(e * shards + s) % ranks, s, 1});
    }
    layout.AddLayer(std::move(experts));
  }
  const tg_maps& maps = layout.Maps(0);
  for (auto _ : state) benchmark::DoNotOptimize(Routes::Of(maps, layout.model()));
  state.counters["pieces"] = kLayers * kExperts * shards;
}
BENCHMARK(Table)->Args({256, 1})->Args({256, 8})->Args({8, 8})->Unit(benchmark::kMillisecond);

}  // namespace
