#include "agent/dispatch/routes.h"

#include <algorithm>
#include <string>

namespace tangram::dispatch {

Routes::Begin Routes::End() const {
  return {first_.size(),        ranks_begin_.size(), ranks_.size(),
          pieces_begin_.size(), pieces_.size(),      own_.size()};
}

// Selects the owners of an expert's choices, those from `first` on. Candidates of a choice are the
// ranks that no other choice needs. Each choice gets its first candidates, as many as the choice
// with the fewest has.
uint32_t Routes::OwnOf(int32_t rank, size_t first, const Begin& begin) {
  const size_t end = ranks_begin_.size();
  if (rank < 0 || end - first < 2) return kInTurn;
  const auto ranks_of = [&](size_t choice) {
    const size_t from = begin.ranks + ranks_begin_[choice],
                 to = choice + 1 < end ? begin.ranks + ranks_begin_[choice + 1] : ranks_.size();
    return std::span(ranks_).subspan(from, to - from);
  };
  for (size_t choice = first; choice < end; ++choice)
    for (const uint32_t r : ranks_of(choice)) ++holds_[r];
  uint32_t least = UINT32_MAX, own = kInTurn, before = 0;
  for (size_t choice = first; choice < end; ++choice) {
    uint32_t alone = 0;
    for (const uint32_t r : ranks_of(choice)) {
      if (holds_[r] != 1) continue;
      if (r == static_cast<uint32_t>(rank)) {
        own = static_cast<uint32_t>(choice - begin.ranks_begin);
        before = alone;
      }
      ++alone;
    }
    least = std::min(least, alone);
  }
  for (size_t choice = first; choice < end; ++choice)
    for (const uint32_t r : ranks_of(choice)) holds_[r] = 0;
  return before < least ? own : kInTurn;
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
    const size_t first = ranks_begin_.size();
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
    own_.push_back(OwnOf(maps.rank, first, begin));
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
  out.holds_.assign(maps.world_size, 0);
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
          part(pieces_, begin.pieces, end.pieces),
          part(own_, begin.own, end.own)};
}

}  // namespace tangram::dispatch
