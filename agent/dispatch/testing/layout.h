// Hand-made layouts of experts, for tests and the bench.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "agent/client/include/tangram/client.h"

namespace tangram::dispatch::testing {

struct PlacedPiece {
  uint32_t rank, granule_start, granule_count;
};
// Replicas of an expert, each with all granules.
using Placed = std::vector<std::vector<PlacedPiece>>;

// Has epoch 7. The result of Maps points into this, and is valid until its next call.
class Layout {
 public:
  Layout(uint32_t ranks, uint32_t experts) : ranks_(ranks) { model_.experts = experts; }

  void AddLayer(std::vector<Placed> experts) {
    layers_.push_back(std::move(experts));
    ++model_.layers;
    ++model_.moe_layers;
  }
  void AddDenseLayer() {
    layers_.emplace_back();
    ++model_.layers;
  }
  const tg_model& model() const { return model_; }
  const std::vector<Placed>& layer(size_t index) const { return layers_[index]; }

  // The layout for `rank`: its own pieces have addresses, that of granule g of expert e in layer l
  // is Address(l, e, g).
  const tg_maps& Maps(uint32_t rank) {
    pieces_.clear();
    experts_.clear();
    size_t total = 0;
    for (const auto& layer : layers_)
      for (const Placed& expert : layer) total += expert.size() * Shards(expert);
    pieces_.reserve(total);
    experts_.reserve(layers_.size() * model_.experts);
    maps_layers_.assign(layers_.size(), {});
    int32_t ordinal = 0;
    for (uint32_t l = 0; l < layers_.size(); ++l) {
      maps_layers_[l].layer = l;
      maps_layers_[l].moe_ordinal = layers_[l].empty() ? -1 : ordinal++;
      maps_layers_[l].experts = layers_[l].empty() ? nullptr : experts_.data() + experts_.size();
      for (uint32_t e = 0; e < layers_[l].size(); ++e) AddExpert(rank, l, e);
    }
    maps_.epoch = 7;
    maps_.rank = static_cast<int32_t>(rank);
    maps_.world_size = ranks_;
    maps_.layers = maps_layers_.data();
    return maps_;
  }
  static const void* Address(uint32_t layer, uint32_t expert, uint32_t granule) {
    return reinterpret_cast<const void*>(uintptr_t{1} << 40 | uintptr_t{layer} << 28 |
                                         uintptr_t{expert} << 12 | granule);
  }

 private:
  // All replicas of an expert have the same number of pieces: empty ones fill up.
  static size_t Shards(const Placed& expert) {
    size_t most = 0;
    for (const auto& alternative : expert) most = std::max(most, alternative.size());
    return most;
  }
  void AddExpert(uint32_t rank, uint32_t layer, uint32_t e) {
    const Placed& expert = layers_[layer][e];
    const size_t shards = Shards(expert);
    experts_.push_back({static_cast<uint32_t>(expert.size()), static_cast<uint32_t>(shards),
                        pieces_.data() + pieces_.size()});
    for (const auto& alternative : expert) {
      for (size_t s = 0; s < shards; ++s) {
        tg_piece& to = pieces_.emplace_back();
        if (s >= alternative.size()) continue;
        to.rank = alternative[s].rank;
        to.granule_start = alternative[s].granule_start;
        to.granule_count = alternative[s].granule_count;
        if (to.rank == rank) to.data = Address(layer, e, to.granule_start);
      }
    }
  }

  uint32_t ranks_;
  tg_model model_{};
  std::vector<std::vector<Placed>> layers_;
  std::vector<tg_layer_map> maps_layers_;
  std::vector<tg_expert> experts_;
  std::vector<tg_piece> pieces_;
  tg_maps maps_{};
};

}  // namespace tangram::dispatch::testing
