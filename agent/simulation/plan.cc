#include "agent/simulation/plan.h"

#include <algorithm>
#include <set>

#include "agent/layout/layout.h"

namespace tangram::simulation {
namespace {

constexpr uint32_t kDenseParts = 16;

// Slots of a bank in which a member holds something.
std::set<uint32_t> SlotsIn(const v1::Inventory* held, uint32_t bank) {
  std::set<uint32_t> out;
  for (int i = 0; held != nullptr && i < held->layer_size(); ++i) {
    if (held->bank(i) == bank) out.insert(held->slot(i));
  }
  return out;
}

bool Holds(const v1::Inventory* held, uint32_t layer, uint32_t expert) {
  for (int i = 0; held != nullptr && i < held->layer_size(); ++i) {
    if (held->layer(i) == layer && held->expert(i) == expert) return true;
  }
  return false;
}

std::optional<uint32_t> SlotOf(const v1::Inventory* held, uint32_t layer, uint32_t bank,
                               uint32_t expert) {
  for (int i = 0; held != nullptr && i < held->layer_size(); ++i) {
    if (held->layer(i) == layer && held->bank(i) == bank && held->expert(i) == expert) {
      return held->slot(i);
    }
  }
  return std::nullopt;
}

const v1::Inventory* Of(const Inventories& inventories, const std::string& member) {
  const auto it = inventories.find(member);
  return it == inventories.end() ? nullptr : it->second;
}

std::vector<uint32_t> OwnersOf(const v1::LayerLayout& layer, uint32_t experts) {
  std::vector<uint32_t> out(experts, UINT32_MAX);
  for (const v1::ExpertGroup& group : layer.experts()) {
    for (const uint32_t slot : group.slots()) {
      if (slot > 0) out[slot - 1] = group.ranks(0);
    }
  }
  return out;
}

}  // namespace

bool Owns(const v1::Layout& layout, uint32_t rank) {
  for (const v1::LayerLayout& layer : layout.layers()) {
    for (const v1::ExpertGroup& group : layer.experts()) {
      if (group.ranks(0) == rank) return true;
    }
  }
  return false;
}

void Planner::Fill(const Deal& deal, const v1::Layout* from, bool may_move, v1::Layout* out) const {
  out->set_world(kWorld);
  out->set_epoch(from == nullptr ? 1 : from->epoch() + 1);
  out->set_geometry_fingerprint(geometry.fingerprint());
  out->set_banks(banks);
  const auto ranks = static_cast<uint32_t>(out->members_size());
  for (uint32_t r = 0; r < ranks; ++r) out->mutable_dense()->add_ranks(r);
  std::set<uint32_t> active, used;
  for (const std::vector<uint32_t>& owners : deal) active.insert(owners.begin(), owners.end());
  for (uint32_t l = 0; l < deal.size(); ++l) {
    used.insert(l + static_cast<uint32_t>(from == nullptr ? 0 : from->layers(l).bank_offset()));
  }
  for (uint32_t l = 0; l < deal.size(); ++l) {
    v1::LayerLayout& layer = *out->add_layers();
    layer.set_layer(l);
    int32_t offset = from == nullptr ? 0 : from->layers(l).bank_offset();
    uint32_t spare = 0;
    while (spare < banks && used.contains(spare)) ++spare;
    if (may_move && spare < banks && dice.OneIn(2)) {
      used.insert(spare);
      offset = static_cast<int32_t>(spare) - static_cast<int32_t>(l);
    }
    layer.set_bank_offset(offset);
    const auto bank = static_cast<uint32_t>(static_cast<int32_t>(l) + offset);
    layer.set_expert_group_size(1);
    layer.set_attention_group_size(1);
    for (const uint32_t r : active) {
      const v1::Inventory* held = Of(inventories, out->members(static_cast<int>(r)).id());
      std::set<uint32_t> taken = SlotsIn(held, bank);
      std::map<uint32_t, uint32_t> slots;  // expert by slot
      for (uint32_t e = 0; e < deal[l].size(); ++e) {
        if (deal[l][e] != r) continue;
        const auto kept = SlotOf(held, l, bank, e);
        uint32_t slot = kept.value_or(0);
        while (!kept && taken.contains(slot)) ++slot;
        taken.insert(slot);
        slots[slot] = e;
      }
      v1::ExpertGroup& group = *layer.add_experts();
      group.add_ranks(r);
      const uint32_t last = slots.empty() ? 0 : slots.rbegin()->first + 1;
      for (uint32_t s = 0; s < last; ++s) {
        group.add_slots(slots.contains(s) ? slots[s] + 1 : 0);
      }
      v1::AttentionGroup& attention = *layer.add_attention();
      attention.add_ranks(r);
      attention.add_query_head_bounds(0);
      attention.add_query_head_bounds(geometry.proto().query_heads());
    }
  }
}

v1::Layout Planner::First(const std::vector<v1::Member>& members) const {
  v1::Layout out;
  for (const v1::Member& member : members) *out.add_members() = member;
  Deal deal(geometry.proto().layers(), std::vector<uint32_t>(geometry.experts()));
  for (auto& owners : deal) {
    for (uint32_t e = 0; e < owners.size(); ++e) {
      owners[e] = e % static_cast<uint32_t>(members.size());
    }
  }
  Fill(deal, nullptr, false, &out);
  return out;
}

v1::Layout Planner::Dealt(const v1::Layout& from, const std::vector<bool>& active) const {
  v1::Layout out;
  *out.mutable_members() = from.members();
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < active.size(); ++r) {
    if (active[r]) ranks.push_back(r);
  }
  Deal deal(geometry.proto().layers(), std::vector<uint32_t>(geometry.experts()));
  for (auto& owners : deal) {
    const auto turn = static_cast<uint32_t>(dice.Below(ranks.size()));
    for (uint32_t e = 0; e < owners.size(); ++e) owners[e] = ranks[(e + turn) % ranks.size()];
  }
  Fill(deal, &from, true, &out);
  return out;
}

v1::Layout Planner::Joined(const v1::Layout& from, const std::vector<v1::Member>& members) const {
  v1::Layout out = from;
  out.set_epoch(from.epoch() + 1);
  for (const v1::Member& member : members) {
    out.mutable_dense()->add_ranks(static_cast<uint32_t>(out.members_size()));
    *out.add_members() = member;
  }
  return out;
}

v1::Layout Planner::Left(const v1::Layout& from) const {
  v1::LayoutDelta delta;
  delta.set_members_changed(true);
  uint32_t next = 0;
  for (uint32_t r = 0; r < static_cast<uint32_t>(from.members_size()); ++r) {
    const bool stays = Owns(from, r);
    delta.add_renumber(stays ? ++next : 0);
    if (!stays) continue;
    *delta.add_members() = from.members(static_cast<int>(r));
    delta.mutable_dense()->add_ranks(next - 1);
  }
  return layout::Apply(from, delta, from.epoch() + 1).value();
}

v1::Layout Planner::Repaired(const v1::Layout& from,
                             const std::vector<std::string>& survivors) const {
  v1::Layout out;
  std::map<uint32_t, uint32_t> now;  // rank by previous rank
  for (const std::string& id : survivors) {
    const auto before = static_cast<uint32_t>(layout::RankOf(from, id));
    now[before] = static_cast<uint32_t>(out.members_size());
    *out.add_members() = from.members(static_cast<int>(before));
  }
  Deal deal;
  for (const v1::LayerLayout& layer : from.layers()) {
    std::vector<uint32_t> owners = OwnersOf(layer, geometry.experts());
    std::vector<uint32_t> count(survivors.size());
    for (uint32_t& owner : owners) {
      owner = now.contains(owner) ? now[owner] : UINT32_MAX;
      if (owner != UINT32_MAX) ++count[owner];
    }
    for (uint32_t& owner : owners) {
      if (owner != UINT32_MAX) continue;
      owner = static_cast<uint32_t>(std::min_element(count.begin(), count.end()) - count.begin());
      ++count[owner];
    }
    deal.push_back(std::move(owners));
  }
  Fill(deal, &from, false, &out);
  return out;
}

v1::RankPart Planner::PartOf(const std::string& member, const v1::Layout* from,
                             const v1::Layout& target) const {
  const int32_t rank = layout::RankOf(target, member);
  const v1::Inventory* mine = Of(inventories, member);
  v1::RankPart part;
  part.set_member(member);
  part.set_rank(static_cast<uint32_t>(rank >= 0 ? rank : layout::RankOf(*from, member)));
  part.set_peak_bytes(uint64_t{1} << 60);  // unlimited: the pool has room
  if (rank < 0) return part;
  const auto holder = [&](uint32_t layer, uint32_t expert) -> uint32_t {
    std::vector<uint32_t> sources;
    for (int r = 0; r < target.members_size(); ++r) {
      if (r != rank && Holds(Of(inventories, target.members(r).id()), layer, expert)) {
        sources.push_back(static_cast<uint32_t>(r) + 1);
      }
    }
    return sources.empty() ? 0 : sources[dice.Below(sources.size())];
  };
  const auto wanted = layout::PiecesOf(target, geometry, static_cast<uint32_t>(rank));
  for (const layout::PlacedPiece& piece : wanted) {
    if (SlotOf(mine, piece.layer, piece.bank, piece.expert) == piece.slot) continue;
    const auto add = [&](auto* columns) {
      columns->add_layer(piece.layer);
      columns->add_expert(piece.expert);
      columns->add_granule_start(piece.run.start);
      columns->add_granule_count(piece.run.count);
    };
    if (Holds(mine, piece.layer, piece.expert)) {
      add(part.mutable_copies());
    } else {
      add(part.mutable_fetches());
      part.mutable_fetches()->add_source(holder(piece.layer, piece.expert));
    }
  }
  const uint64_t page = geometry.page_bytes();
  part.set_steady_bytes(layout::PagesTouched(wanted, geometry) * page +
                        layout::RoundUp(geometry.proto().dense_bytes(), page));
  if (mine != nullptr && mine->dense()) return part;
  std::vector<uint32_t> sources;
  for (int r = 0; r < target.members_size(); ++r) {
    const v1::Inventory* other = Of(inventories, target.members(r).id());
    if (r != rank && other != nullptr && other->dense()) {
      sources.push_back(static_cast<uint32_t>(r) + 1);
    }
  }
  for (uint32_t p = 0; p < kDenseParts; ++p) {
    uint32_t source = sources.empty() ? 0 : sources[dice.Below(sources.size())];
    const uint32_t reader = p % static_cast<uint32_t>(target.members_size());
    if (sources.empty() && reader != static_cast<uint32_t>(rank)) source = reader + 1;
    part.mutable_dense()->add_source_by_part(source);
  }
  return part;
}

}  // namespace tangram::simulation
