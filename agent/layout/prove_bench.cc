// A rank's pieces in a layout, and the proof of its part of a plan: 256 experts per layer, half of
// the layers sharded over 8 ranks. An item is a piece.
#include <benchmark/benchmark.h>

#include "agent/layout/prove.h"
#include "agent/layout/testing.h"

namespace tangram::layout {
namespace {

struct World {
  explicit World(uint32_t layers)
      : geometry(GeometryView::Make(testing::SmallGeometry(layers, 256, 8)).value()) {
    std::mt19937_64 random(1);
    target = testing::RandomLayout(geometry, 8, 2, random);
    pieces = PiecesOf(target, geometry, 0);
  }
  GeometryView geometry;
  v1::Layout target;
  std::vector<PlacedPiece> pieces;  // of rank 0
};

void Pieces(benchmark::State& state) {
  const World world(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(PiecesOf(world.target, world.geometry, 0));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(world.pieces.size()));
}
BENCHMARK(Pieces)->Arg(1)->Arg(58);

void Prove(benchmark::State& state) {
  const World world(static_cast<uint32_t>(state.range(0)));
  v1::RankPart part;
  for (const PlacedPiece& piece : world.pieces) {
    part.mutable_fetches()->add_layer(piece.layer);
    part.mutable_fetches()->add_expert(piece.expert);
    part.mutable_fetches()->add_granule_start(piece.run.start);
    part.mutable_fetches()->add_granule_count(piece.run.count);
    part.mutable_fetches()->add_source(0);
  }
  const uint64_t page = world.geometry.page_bytes();
  const uint64_t bytes = PagesTouched(world.pieces, world.geometry) * page +
                         RoundUp(world.geometry.proto().dense_bytes(), page);
  part.set_peak_bytes(bytes);
  part.set_steady_bytes(bytes);
  for (auto _ : state) {
    const auto proof = ProvePart(world.geometry, world.target, 0, {}, true, part);
    if (!proof.ok()) return state.SkipWithError(proof.status().message().c_str());
    benchmark::DoNotOptimize(proof->fetches.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(world.pieces.size()));
}
BENCHMARK(Prove)->Arg(1)->Arg(58);

}  // namespace
}  // namespace tangram::layout
