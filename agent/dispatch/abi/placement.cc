#include "agent/dispatch/abi/placement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "agent/client/arrays.h"

namespace tangram::dispatch {
namespace {

// A placeholder address for pieces whose memory only the engine knows: routes check only whether
// there is one.
const char kHere = 0;

}  // namespace

Result<Routes> RoutesOf(const tgd_piece* pieces, size_t count, size_t piece_size, uint32_t experts,
                        uint64_t epoch, uint32_t rank, uint32_t world_size) {
  const auto all = Array<tgd_piece>::Of(pieces, count, piece_size, "pieces");
  if (!all.ok()) return all.status();
  // [layers][experts][alternatives]
  std::vector<std::vector<std::vector<std::vector<tg_piece>>>> placed;
  for (size_t i = 0; i < count; ++i) {
    const tgd_piece& piece = (*all)[i];
    const auto bad = [&](const std::string& what) {
      return Status{Code::kInvalid, "pieces[" + std::to_string(i) + "] of layer " +
                                        std::to_string(piece.layer) + " expert " +
                                        std::to_string(piece.expert) + ": " + what};
    };
    if (piece.expert >= experts) return bad("there are " + std::to_string(experts) + " experts");
    if (piece.layer != placed.size() && piece.layer + size_t{1} != placed.size())
      return bad("layers come in order, from 0 on");
    if (piece.layer == placed.size()) placed.emplace_back(experts);
    auto& alternatives = placed.back()[piece.expert];
    if (piece.alternative != alternatives.size() &&
        piece.alternative + size_t{1} != alternatives.size())
      return bad("alternatives come in order, from 0 on");
    if (piece.alternative == alternatives.size()) alternatives.emplace_back();
    alternatives.back().push_back({piece.rank, piece.granule_start, piece.granule_count,
                                   piece.rank == rank ? &kHere : nullptr});
  }
  std::vector<tg_layer_map> layers(placed.size());
  std::vector<std::vector<tg_expert>> of(placed.size());
  std::vector<std::vector<tg_piece>> flat(placed.size() * experts);
  for (size_t l = 0; l < placed.size(); ++l) {
    for (uint32_t e = 0; e < experts; ++e) {
      size_t shards = 0;
      for (const auto& alternative : placed[l][e]) shards = std::max(shards, alternative.size());
      std::vector<tg_piece>& to = flat[l * experts + e];
      for (auto& alternative : placed[l][e]) {
        alternative.resize(shards);
        to.insert(to.end(), alternative.begin(), alternative.end());
      }
      of[l].push_back(
          {static_cast<uint32_t>(placed[l][e].size()), static_cast<uint32_t>(shards), to.data()});
    }
    layers[l].layer = static_cast<uint32_t>(l);
    layers[l].moe_ordinal = static_cast<int32_t>(l);
    layers[l].experts = of[l].data();
  }
  tg_maps maps{};
  maps.epoch = epoch;
  maps.rank = static_cast<int32_t>(rank);
  maps.world_size = world_size;
  maps.layers = layers.data();
  tg_model model{};
  model.layers = static_cast<uint32_t>(layers.size());
  model.experts = experts;
  return Routes::Of(maps, model);
}

}  // namespace tangram::dispatch
