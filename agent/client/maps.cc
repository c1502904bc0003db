#include "agent/client/maps.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

namespace tangram {

Result<std::unique_ptr<Maps>> Maps::Build(
    std::shared_ptr<const v1::Layout> held, std::string hash, const layout::GeometryView& geometry,
    const std::string& member, const google::protobuf::RepeatedPtrField<v1::PeerAddress>& peers,
    const Maps* before) {
  const v1::Layout& layout = *held;
  TANGRAM_RETURN_IF_ERROR(layout::Validate(layout, geometry));
  auto maps = std::unique_ptr<Maps>(new Maps);
  maps->layout_ = std::move(held);
  maps->hash_ = std::move(hash);

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

  tg_maps& out = maps->maps_;
  out.struct_size = sizeof out;
  out.layer_size = sizeof(tg_layer_map);
  out.expert_size = sizeof(tg_expert);
  out.piece_size = sizeof(tg_piece);
  out.group_size = sizeof(tg_attention_group);
  out.rank = layout::RankOf(layout, member);
  if (before != nullptr && !maps->SameRanks(*before)) before = nullptr;
  const size_t layers = geometry.proto().layers();
  maps->layers_.resize(layers);
  maps->parts_.resize(layers);
  for (const v1::LayerLayout& layer : layout.layers()) {
    const uint32_t number = layer.layer();
    std::shared_ptr<Layer>& part = maps->parts_[number];
    std::string wire = layer.SerializeAsString();
    if (before != nullptr && before->parts_[number]->wire == wire) {
      part = before->parts_[number];
    } else {
      part = std::make_shared<Layer>();
      part->wire = std::move(wire);
      part->map.layer = number;
      part->map.moe_ordinal = geometry.ordinal(number);
      if (part->map.moe_ordinal >= 0) {
        TANGRAM_RETURN_IF_ERROR(AddExperts(layer, geometry, out.rank, part.get()));
      }
      AddAttention(layer, part.get());
    }
    maps->layers_[number] = part->map;
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

bool Maps::SameRanks(const Maps& other) const {
  return maps_.rank == other.maps_.rank &&
         std::ranges::equal(layout_->members(), other.layout_->members(), {}, &v1::Member::id,
                            &v1::Member::id);
}

Status Maps::AddExperts(const v1::LayerLayout& layer, const layout::GeometryView& geometry,
                        int32_t rank, Layer* out) {
  const uint32_t shards = layer.expert_group_size();
  // Replicas of each expert: the groups that have it in a slot, in order. [first[e], first[e + 1])
  // of `holders`.
  std::vector<uint32_t> first(geometry.experts() + 1, 0);
  for (const v1::ExpertGroup& group : layer.experts()) {
    for (const uint32_t filled : group.slots()) {
      if (filled == 0) continue;
      if (filled > geometry.experts() || group.ranks_size() != static_cast<int>(shards)) {
        return {Code::kInvalid, "layer " + std::to_string(layer.layer()) + ": slot with expert " +
                                    std::to_string(filled - 1) + " in a group of " +
                                    std::to_string(group.ranks_size())};
      }
      ++first[filled];
    }
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<const v1::ExpertGroup*> holders(first.back());
  std::vector<uint32_t> next(first.begin(), first.end() - 1);
  for (const v1::ExpertGroup& group : layer.experts()) {
    for (const uint32_t filled : group.slots()) {
      if (filled != 0) holders[next[filled - 1]++] = &group;
    }
  }
  auto& pieces = out->pieces;
  auto& experts = out->experts;
  pieces.reserve(holders.size() * shards);
  experts.reserve(geometry.experts());
  for (uint32_t expert = 0; expert < geometry.experts(); ++expert) {
    const tg_piece* alternatives = pieces.data() + pieces.size();
    for (uint32_t holder = first[expert]; holder < first[expert + 1]; ++holder) {
      const v1::ExpertGroup* group = holders[holder];
      for (uint32_t position = 0; position < shards; ++position) {
        const auto run = layout::ShardOf(geometry.granules(), shards, expert, position);
        const uint32_t holder_rank = group->ranks(static_cast<int>(position));
        pieces.push_back({holder_rank, run.start, run.count, nullptr});
        if (static_cast<int32_t>(holder_rank) == rank) out->mine.push_back(&pieces.back());
      }
    }
    experts.push_back({first[expert + 1] - first[expert], shards, alternatives});
  }
  out->map.experts = experts.data();
  return OkStatus();
}

void Maps::AddAttention(const v1::LayerLayout& layer, Layer* out) {
  auto& groups = out->groups;
  auto& numbers = out->numbers;
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
  out->map.attention_groups = static_cast<uint32_t>(groups.size());
  out->map.attention = groups.data();
}

void Maps::Resolve(const uint8_t* banks, const layout::GeometryView& geometry) {
  if (maps_.rank < 0) return;
  const auto rank = static_cast<uint32_t>(maps_.rank);
  std::vector<layout::PlacedPiece> placed;
  for (const v1::LayerLayout& layer : layout_->layers()) {
    Layer& part = *parts_[layer.layer()];
    if (std::exchange(part.resolved, true)) continue;
    placed.clear();
    layout::AddPiecesOf(layer, geometry, rank, &placed);
    std::ranges::sort(placed, layout::InOrder);
    // The layout is valid: both lists have the same pieces.
    for (size_t i = 0; i < std::min(placed.size(), part.mine.size()); ++i) {
      part.mine[i]->data = banks + placed[i].bank * geometry.bank_pitch() + placed[i].offset;
    }
  }
}

}  // namespace tangram
