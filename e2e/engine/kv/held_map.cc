#include "e2e/engine/kv/held_map.h"

#include <string>

namespace tangram::engine {

Result<std::vector<kv::LayerGroups>> GroupsOf(const tg_maps& maps, const tg_model& model) {
  std::vector<kv::LayerGroups> out(model.layers);
  for (uint32_t l = 0; l < model.layers; ++l) {
    const tg_layer_map& layer = maps.layers[l];
    const std::string where = "epoch " + std::to_string(maps.epoch) + " layer " + std::to_string(l);
    std::vector<bool> seen(maps.world_size, false);
    for (uint32_t g = 0; g < layer.attention_groups; ++g) {
      const tg_attention_group& group = layer.attention[g];
      kv::Group& to = out[l].emplace_back();
      to.ranks.assign(group.ranks, group.ranks + group.size);
      to.query_head_bounds.assign(group.query_head_bounds,
                                  group.query_head_bounds + group.size + 1);
      for (const uint32_t rank : to.ranks) {
        if (rank >= maps.world_size || seen[rank]) {
          return Status{Code::kInvalid, where + ": rank " + std::to_string(rank) +
                                            " is in two attention groups or not in the world of " +
                                            std::to_string(maps.world_size)};
        }
        seen[rank] = true;
      }
      if (to.query_head_bounds.front() != 0 || to.query_head_bounds.back() != model.query_heads) {
        return Status{Code::kInvalid, where + ": an attention group has query heads " +
                                          std::to_string(to.query_head_bounds.front()) + " to " +
                                          std::to_string(to.query_head_bounds.back()) + " of " +
                                          std::to_string(model.query_heads)};
      }
    }
  }
  return out;
}

HeldMap::HeldMap(const std::vector<kv::LayerGroups>& groups, const kv::Shape& shape, uint32_t ranks)
    : ranks_(ranks), layers_(static_cast<uint32_t>(groups.size())) {
  held_.resize(size_t{ranks} * ranks * layers_);
  cost_.resize(size_t{ranks} * ranks);
  accepts_.assign(ranks, true);
  for (uint32_t l = 0; l < layers_; ++l) {
    std::vector<bool> member(ranks, false);
    for (const kv::Group& group : groups[l]) {
      for (size_t p = 0; p < group.ranks.size(); ++p) {
        const uint32_t rank = group.ranks[p];
        member[rank] = true;
        const auto [first, last] = kv::HeldKvHeads(shape, group, p);
        for (const uint32_t home : group.ranks) {
          uint32_t& cost = cost_[size_t{home} * ranks + rank];
          held_[(size_t{home} * ranks + rank) * layers_ + l] = {cost, first, last - first};
          cost += last - first;
        }
      }
    }
    for (uint32_t r = 0; r < ranks; ++r) accepts_[r] = accepts_[r] && member[r];
  }
}

}  // namespace tangram::engine
