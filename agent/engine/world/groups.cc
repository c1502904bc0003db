#include "agent/engine/world/groups.h"

#include <algorithm>
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

bool Accepts(const std::vector<kv::LayerGroups>& groups, uint32_t rank) {
  return std::ranges::all_of(groups, [&](const kv::LayerGroups& layer) {
    return std::ranges::any_of(layer, [&](const kv::Group& group) {
      return std::ranges::find(group.ranks, rank) != group.ranks.end();
    });
  });
}

}  // namespace tangram::engine
