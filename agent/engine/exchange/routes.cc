#include "agent/engine/exchange/routes.h"

#include <algorithm>
#include <string>

namespace tangram::engine {

Routes::Begin Routes::End() const {
  return {first_.size(), ranks_begin_.size(), ranks_.size(), pieces_begin_.size(), pieces_.size()};
}

Status Routes::Add(const tg_maps& maps, const tg_layer_map& layer, uint32_t experts) {
  const auto bad = [&](uint32_t expert, const std::string& what) {
    return Status{Code::kInvalid, "epoch " + std::to_string(maps.epoch) + " layer " +
                                      std::to_string(layer.layer) + " expert " +
                                      std::to_string(expert) + ": " + what};
  };
  const Begin begin = End();
  const auto since = [](const auto& values, size_t from) {
    return static_cast<uint32_t>(values.size() - from);
  };
  for (uint32_t e = 0; e < experts; ++e) {
    const tg_expert& expert = layer.experts[e];
    if (expert.replicas == 0) return bad(e, "it is nowhere");
    first_.push_back(since(ranks_begin_, begin.ranks_begin));
    for (uint32_t a = 0; a < expert.replicas; ++a) {
      const size_t ranks = ranks_.size();
      const uint32_t choice = since(ranks_begin_, begin.ranks_begin);
      ranks_begin_.push_back(since(ranks_, begin.ranks));
      pieces_begin_.push_back(since(pieces_, begin.pieces));
      ++choices_;
      for (uint32_t s = 0; s < expert.shards; ++s) {
        const tg_piece& piece = expert.pieces[size_t{a} * expert.shards + s];
        if (piece.granule_count == 0) continue;
        if (piece.rank >= maps.world_size)
          return bad(e, "a piece of it is on rank " + std::to_string(piece.rank) +
                            " of a world of " + std::to_string(maps.world_size));
        if (seen_[piece.rank] != choices_) ranks_.push_back(piece.rank);
        seen_[piece.rank] = choices_;
        if (static_cast<int64_t>(piece.rank) == maps.rank && piece.data != nullptr)
          pieces_.push_back({piece.data, choice, e, piece.granule_start, piece.granule_count});
      }
      if (ranks_.size() == ranks) return bad(e, "an alternative of it has no granules");
    }
  }
  first_.push_back(since(ranks_begin_, begin.ranks_begin));
  ranks_begin_.push_back(since(ranks_, begin.ranks));
  pieces_begin_.push_back(since(pieces_, begin.pieces));
  layers_.push_back(begin);
  ends_.push_back(End());
  return OkStatus();
}

Result<Routes> Routes::Of(const tg_maps& maps, const tg_model& model) {
  Routes out;
  out.seen_.assign(maps.world_size, 0);
  for (uint32_t l = 0; l < model.layers; ++l) {
    const tg_layer_map& layer = maps.layers[l];
    if (layer.moe_ordinal < 0 || layer.experts == nullptr) continue;
    if (static_cast<uint32_t>(layer.moe_ordinal) != out.moe_layers())
      return Status{Code::kInvalid, "layer " + std::to_string(l) + " is layer " +
                                        std::to_string(layer.moe_ordinal) + " of experts, after " +
                                        std::to_string(out.moe_layers())};
    TANGRAM_RETURN_IF_ERROR(out.Add(maps, layer, model.experts));
  }
  return out;
}

LayerRoutes Routes::Layer(uint32_t moe_ordinal) const {
  const Begin &begin = layers_[moe_ordinal], &end = ends_[moe_ordinal];
  const auto part = [](const auto& values, size_t from, size_t to) {
    return std::span(values).subspan(from, to - from);
  };
  return {part(first_, begin.first, end.first),
          part(ranks_begin_, begin.ranks_begin, end.ranks_begin),
          part(ranks_, begin.ranks, end.ranks),
          part(pieces_begin_, begin.pieces_begin, end.pieces_begin),
          part(pieces_, begin.pieces, end.pieces)};
}

}  // namespace tangram::engine
