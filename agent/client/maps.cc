#include "agent/client/maps.h"

#include <algorithm>
#include <cstring>

namespace tangram {

Result<std::unique_ptr<Maps>> Maps::Build(
    const v1::Layout& layout, const layout::GeometryView& geometry, const std::string& member,
    const google::protobuf::RepeatedPtrField<v1::PeerAddress>& peers) {
  TANGRAM_RETURN_IF_ERROR(layout::Validate(layout, geometry));
  auto maps = std::unique_ptr<Maps>(new Maps);
  maps->layout_ = layout;
  maps->hash_ = layout::HashOf(layout);

  std::map<std::string, const v1::PeerAddress*> by_member;
  for (const v1::PeerAddress& peer : peers) by_member.emplace(peer.member(), &peer);
  const size_t world = static_cast<size_t>(layout.members_size());
  maps->text_.reserve(4 * world);  // c_str() of short strings moves with the vector
  const auto keep = [&](const std::string& text) { return maps->text_.emplace_back(text).c_str(); };
  for (const v1::Member& m : layout.members()) {
    const auto peer = by_member.find(m.id());
    maps->members_.push_back(keep(m.id()));
    maps->mesh_.push_back(keep(peer == by_member.end() ? "" : peer->second->engine()));
    maps->frontends_.push_back(keep(peer == by_member.end() ? "" : peer->second->frontend()));
    maps->pods_.push_back(keep(m.pod()));
  }

  const size_t layers = geometry.proto().layers();
  maps->layers_.resize(layers);
  maps->pieces_.resize(layers);
  maps->experts_.resize(layers);
  maps->groups_.resize(layers);
  maps->numbers_.resize(layers);
  tg_maps& out = maps->maps_;
  out.struct_size = sizeof out;
  out.layer_size = sizeof(tg_layer_map);
  out.expert_size = sizeof(tg_expert);
  out.piece_size = sizeof(tg_piece);
  out.group_size = sizeof(tg_attention_group);
  out.rank = layout::RankOf(layout, member);
  for (const v1::LayerLayout& layer : layout.layers()) {
    tg_layer_map& entry = maps->layers_[layer.layer()];
    entry.layer = layer.layer();
    entry.moe_ordinal = geometry.ordinal(layer.layer());
    if (entry.moe_ordinal >= 0) {
      TANGRAM_RETURN_IF_ERROR(maps->AddExperts(layer, geometry, &entry));
    }
    maps->AddAttention(layer, &entry);
  }
  out.epoch = layout.epoch();
  std::memcpy(out.hash, maps->hash_.data(), std::min(sizeof out.hash, maps->hash_.size()));
  out.world_size = static_cast<uint32_t>(world);
  out.members = maps->members_.data();
  out.mesh = maps->mesh_.data();
  out.frontends = maps->frontends_.data();
  out.layers = maps->layers_.data();
  out.pods = maps->pods_.data();
  return maps;
}

Status Maps::AddExperts(const v1::LayerLayout& layer, const layout::GeometryView& geometry,
                        tg_layer_map* out) {
  const uint32_t shards = layer.expert_group_size();
  // Alternatives of each expert: the groups that have it in a slot, in order.
  std::vector<std::vector<const v1::ExpertGroup*>> holders(geometry.experts());
  for (const v1::ExpertGroup& group : layer.experts()) {
    for (const uint32_t filled : group.slots()) {
      if (filled == 0) continue;
      if (filled > geometry.experts() || group.ranks_size() != static_cast<int>(shards)) {
        return {Code::kInvalid, "layer " + std::to_string(layer.layer()) + ": slot with expert " +
                                    std::to_string(filled - 1) + " in a group of " +
                                    std::to_string(group.ranks_size())};
      }
      holders[filled - 1].push_back(&group);
    }
  }
  size_t total = 0;
  for (const auto& groups : holders) total += groups.size() * shards;
  auto& pieces = pieces_[layer.layer()];
  auto& experts = experts_[layer.layer()];
  pieces.reserve(total);
  experts.reserve(geometry.experts());
  for (uint32_t expert = 0; expert < geometry.experts(); ++expert) {
    const tg_piece* first = pieces.data() + pieces.size();
    for (const v1::ExpertGroup* group : holders[expert]) {
      for (uint32_t position = 0; position < shards; ++position) {
        const auto run = layout::ShardOf(geometry.granules(), shards, expert, position);
        const uint32_t rank = group->ranks(static_cast<int>(position));
        pieces.push_back({rank, run.start, run.count, nullptr});
        if (static_cast<int32_t>(rank) == maps_.rank) {
          mine_[{layer.layer(), expert}].push_back(&pieces.back());
        }
      }
    }
    experts.push_back({static_cast<uint32_t>(holders[expert].size()), shards, first});
  }
  out->experts = experts.data();
  return OkStatus();
}

void Maps::AddAttention(const v1::LayerLayout& layer, tg_layer_map* out) {
  auto& groups = groups_[layer.layer()];
  auto& numbers = numbers_[layer.layer()];
  size_t total = 0;
  for (const auto& group : layer.attention()) {
    total += static_cast<size_t>(group.ranks_size() + group.query_head_bounds_size());
  }
  numbers.reserve(total);
  for (const v1::AttentionGroup& group : layer.attention()) {
    tg_attention_group entry{};
    entry.size = static_cast<uint32_t>(group.ranks_size());
    entry.ranks = numbers.data() + numbers.size();
    numbers.insert(numbers.end(), group.ranks().begin(), group.ranks().end());
    entry.query_head_bounds = numbers.data() + numbers.size();
    numbers.insert(numbers.end(), group.query_head_bounds().begin(),
                   group.query_head_bounds().end());
    groups.push_back(entry);
  }
  out->attention_groups = static_cast<uint32_t>(groups.size());
  out->attention = groups.data();
}

void Maps::Resolve(const uint8_t* banks, const layout::GeometryView& geometry) {
  if (maps_.rank < 0) return;
  const auto rank = static_cast<uint32_t>(maps_.rank);
  // A second slot with the same piece on one rank is a second alternative: hand out in order.
  std::map<std::pair<uint32_t, uint32_t>, size_t> next;
  for (const layout::PlacedPiece& piece : layout::PiecesOf(layout_, geometry, rank)) {
    const std::pair<uint32_t, uint32_t> key{piece.layer, piece.expert};
    const auto it = mine_.find(key);
    if (it == mine_.end()) continue;
    const size_t index = next[key]++;
    if (index >= it->second.size()) continue;
    it->second[index]->data = banks + piece.bank * geometry.bank_pitch() + piece.offset;
  }
}

}  // namespace tangram
