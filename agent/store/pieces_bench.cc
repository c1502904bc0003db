// The index of a rank's pieces, for one layer of 256 experts and for 58, compared with a std::map
// of the same keys. An item is a lookup, or a merged piece.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "agent/store/pieces.h"

namespace tangram::store {
namespace {

constexpr uint32_t kExperts = 256;
constexpr layout::Run kRun{0, 1};

std::vector<Piece> PiecesOf(uint32_t layers) {
  std::vector<Piece> out;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (uint32_t expert = 0; expert < kExperts; ++expert) {
      layout::PlacedPiece place;
      place.layer = layer;
      place.expert = expert;
      place.run = kRun;
      out.emplace_back(place, false).hashes[0] = 1;
    }
  }
  return out;
}

std::vector<std::pair<uint32_t, uint32_t>> InAnyOrder(uint32_t layers) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (uint32_t i = 0; i < layers * kExperts; ++i) out.emplace_back(i / kExperts, i % kExperts);
  std::shuffle(out.begin(), out.end(), std::mt19937(1));
  return out;
}

void Find(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0));
  const Pieces pieces(PiecesOf(layers));
  const auto asked = InAnyOrder(layers);
  for (auto _ : state) {
    for (const auto& [layer, expert] : asked) {
      benchmark::DoNotOptimize(pieces.Find(layer, expert, kRun));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(asked.size()));
}
BENCHMARK(Find)->Arg(1)->Arg(58);

void FindInAMap(benchmark::State& state) {
  const auto layers = static_cast<uint32_t>(state.range(0));
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Piece> pieces;
  for (Piece& piece : PiecesOf(layers)) {
    pieces.emplace(std::tuple(piece.place.layer, piece.place.expert, 0), std::move(piece));
  }
  const auto asked = InAnyOrder(layers);
  for (auto _ : state) {
    for (const auto& [layer, expert] : asked) {
      const auto found = pieces.find({layer, expert, 0});
      benchmark::DoNotOptimize(found != pieces.end() && found->second.Has(kRun));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(asked.size()));
}
BENCHMARK(FindInAMap)->Arg(1)->Arg(58);

// A commit's work under its lock: half of the pieces go, as many are added.
void SplitAndAdd(benchmark::State& state) {
  const Pieces all(PiecesOf(static_cast<uint32_t>(state.range(0))));
  std::vector<bool> stays(all.size());
  for (size_t i = 0; i < stays.size(); i += 2) stays[i] = true;
  for (auto _ : state) {
    state.PauseTiming();
    Pieces pieces = all;
    state.ResumeTiming();
    pieces.Add(pieces.Split(stays));
    benchmark::DoNotOptimize(pieces.size());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(all.size()));
}
BENCHMARK(SplitAndAdd)->Arg(1)->Arg(58);

}  // namespace
}  // namespace tangram::store
