#include "agent/kv/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace tangram::kv {
namespace {

// The room of the world while requests are given out one after another.
class Room {
 public:
  explicit Room(const Input& in)
      : in_(in),
        total_(in.new_ranks),
        free_(in.new_ranks),
        old_of_new_(in.new_ranks, -1),
        used_(in.new_ranks),
        incoming_(in.new_ranks),
        home_blocks_(in.new_ranks),
        blocks_(in.new_ranks),
        needs_(in.new_ranks) {
    for (uint32_t r = 0; r < in.new_ranks && !in.joined_pages.empty(); ++r) {
      total_[r] = free_[r] = in.joined_pages[r];
    }
    for (uint32_t o = 0; o < in.ranks.size(); ++o) {
      if (in.new_of_old[o] < 0) continue;
      const auto r = static_cast<uint32_t>(in.new_of_old[o]);
      total_[r] = in.ranks[o].total_pages;
      free_[r] = in.ranks[o].free_pages;
      old_of_new_[r] = static_cast<int32_t>(o);
    }
    for (uint32_t home = 0; home < in.new_ranks; ++home) {
      size_t unused;
      const bool in_every_layer = std::all_of(
          in.new_groups.begin(), in.new_groups.end(),
          [&](const LayerGroups& groups) { return FindGroup(groups, home, &unused) != nullptr; });
      if (!in_every_layer) continue;
      homes_.push_back(home);
      for (uint32_t r = 0; r < in.new_ranks; ++r) {
        auto held = HeldOf(in.shape, in.new_groups, home, r);
        if (!held.empty()) needs_[home].push_back({r, std::move(held)});
      }
    }
  }

  const std::vector<uint32_t>& homes() const { return homes_; }
  bool IsHome(int32_t rank) const {
    return rank >= 0 &&
           std::binary_search(homes_.begin(), homes_.end(), static_cast<uint32_t>(rank));
  }

  // Least first: the fullest rank that the home's requests use, then the home's own blocks.
  auto Load(uint32_t home) const {
    double fullest = 0;
    for (const Need& n : needs_[home]) {
      fullest =
          std::max(fullest, static_cast<double>(used_[n.rank]) / std::max(total_[n.rank], 1u));
    }
    return std::tuple(fullest, home_blocks_[home], home);
  }

  // Gives the request a place at the home, or says why not and changes nothing.
  bool Take(const Request& q, uint32_t home, std::string* why) {
    const uint32_t filled = BlocksOf(q.length, in_.shape.block_tokens);
    std::vector<uint32_t> fresh;
    for (uint32_t b = 0; b < filled; ++b) {
      if (!blocks_[home].contains({q.home, q.blocks[b]})) fresh.push_back(q.blocks[b]);
    }
    const uint64_t future = BlocksOf(q.reserved, in_.shape.block_tokens) - filled;
    for (const Need& n : needs_[home]) {
      const uint64_t used = used_[n.rank] + (fresh.size() + future) * n.heads.size();
      const uint64_t incoming = incoming_[n.rank] + Incoming(q, home, n, fresh);
      if (used <= total_[n.rank] && incoming <= free_[n.rank]) continue;
      *why = fmt::format(
          "at home {} rank {} would have {} of {} KV pages reserved, and {} arriving "
          "with {} free",
          home, n.rank, used, total_[n.rank], incoming, free_[n.rank]);
      return false;
    }
    for (const Need& n : needs_[home]) {
      used_[n.rank] += (fresh.size() + future) * n.heads.size();
      incoming_[n.rank] += Incoming(q, home, n, fresh);
      for (uint32_t b : fresh) {
        if (Overlap(q.home, home, n) > 0) owners_.emplace(std::tuple(n.rank, q.home, b), home);
      }
    }
    for (uint32_t b : fresh) blocks_[home].insert({q.home, b});
    home_blocks_[home] += fresh.size() + future;
    return true;
  }

  auto TakeOwners() { return std::move(owners_); }

 private:
  struct Need {
    uint32_t rank = 0;
    std::vector<LayerHead> heads;
  };

  // Pages of a block of the old home that the rank has already and that the new home needs there.
  uint64_t Overlap(uint32_t old_home, uint32_t home, const Need& need) {
    const int32_t old_rank = old_of_new_[need.rank];
    if (old_rank < 0) return 0;
    auto [it, added] = overlap_.try_emplace({old_home, home, need.rank});
    if (added) {
      std::vector<LayerHead> both;
      const auto held =
          HeldOf(in_.shape, in_.old_groups, old_home, static_cast<uint32_t>(old_rank));
      std::set_intersection(held.begin(), held.end(), need.heads.begin(), need.heads.end(),
                            std::back_inserter(both));
      it->second = both.size();
    }
    return it->second;
  }

  uint64_t Incoming(const Request& q, uint32_t home, const Need& need,
                    const std::vector<uint32_t>& fresh) {
    uint64_t pages = 0;
    for (uint32_t b : fresh) {
      const bool taken = owners_.contains({need.rank, q.home, b});
      pages += need.heads.size() - (taken ? 0 : Overlap(q.home, home, need));
    }
    return pages;
  }

  const Input& in_;
  std::vector<uint32_t> total_, free_;
  std::vector<int32_t> old_of_new_;
  std::vector<uint64_t> used_, incoming_, home_blocks_;
  std::vector<std::set<std::pair<uint32_t, uint32_t>>> blocks_;  // [home]: (old home, block)
  std::vector<std::vector<Need>> needs_;                         // [home]
  std::vector<uint32_t> homes_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> overlap_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> owners_;
};

// Block ids: a block whose home stays keeps its own; the others get the lowest free ones.
void NameBlocks(const Input& in, const std::vector<uint32_t>& homes, Placed& out) {
  out.blocks.resize(in.new_ranks);
  out.next_block.assign(in.new_ranks, 0);
  // Per new home: (old home, old block) -> filled tokens.
  std::vector<std::map<std::pair<uint32_t, uint32_t>, uint32_t>> tokens(in.new_ranks);
  const uint32_t bt = in.shape.block_tokens;
  for (size_t i = 0; i < in.requests.size(); ++i) {
    const Request& q = in.requests[i];
    for (uint32_t b = 0; b < BlocksOf(q.length, bt); ++b) {
      uint32_t& t = tokens[homes[i]][{q.home, q.blocks[b]}];
      t = std::max(t, std::min(bt, q.length - b * bt));
    }
  }
  std::vector<std::map<std::pair<uint32_t, uint32_t>, uint32_t>> names(in.new_ranks);
  for (uint32_t home = 0; home < in.new_ranks; ++home) {
    std::set<uint32_t> taken;
    for (const auto& [old, t] : tokens[home]) {
      if (in.new_of_old[old.first] == static_cast<int32_t>(home)) {
        names[home][old] = old.second;
        taken.insert(old.second);
      }
    }
    uint32_t next = 0;
    for (const auto& [old, t] : tokens[home]) {
      if (names[home].contains(old)) continue;
      while (taken.contains(next)) ++next;
      names[home][old] = next++;
    }
    for (const auto& [old, name] : names[home]) {
      out.blocks[home].push_back({old.first, old.second, name, tokens[home][old]});
      out.next_block[home] = std::max(out.next_block[home], name + 1);
    }
    std::ranges::sort(out.blocks[home], {}, &PlacedBlock::new_block);
  }
  for (size_t i = 0; i < in.requests.size(); ++i) {
    const Request& q = in.requests[i];
    Placement p{q.id, homes[i], {}};
    for (uint32_t b = 0; b < BlocksOf(q.length, bt); ++b) {
      p.blocks.push_back(names[homes[i]].at({q.home, q.blocks[b]}));
    }
    out.moved += in.new_of_old[q.home] != static_cast<int32_t>(homes[i]);
    out.requests.push_back(std::move(p));
  }
}

}  // namespace

Result<Placed> PlaceRequests(const Input& in) {
  Room room(in);
  std::vector<size_t> order(in.requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Request &x = in.requests[a], &y = in.requests[b];
    return x.length != y.length ? x.length > y.length : x.id < y.id;
  });
  std::vector<uint32_t> homes(in.requests.size());
  std::vector<size_t> homeless;
  std::string why = "no rank is in an attention group of every layer";
  for (size_t i : order) {
    const int32_t stay = in.new_of_old[in.requests[i].home];
    if (room.IsHome(stay) && room.Take(in.requests[i], static_cast<uint32_t>(stay), &why)) {
      homes[i] = static_cast<uint32_t>(stay);
    } else {
      homeless.push_back(i);
    }
  }
  for (size_t i : homeless) {
    std::vector<uint32_t> candidates = room.homes();
    std::sort(candidates.begin(), candidates.end(),
              [&](uint32_t a, uint32_t b) { return room.Load(a) < room.Load(b); });
    auto taken = std::find_if(candidates.begin(), candidates.end(),
                              [&](uint32_t home) { return room.Take(in.requests[i], home, &why); });
    if (taken == candidates.end()) {
      const Request& q = in.requests[i];
      return Status(
          Code::kNoMemory,
          fmt::format("KV of request {} ({} tokens, {} reserved) fits on none of {} homes: "
                      "{}; let requests finish, or keep more KV pages free",
                      q.id, q.length, q.reserved, candidates.size(), why));
    }
    homes[i] = *taken;
  }
  Placed out;
  out.owners = room.TakeOwners();
  NameBlocks(in, homes, out);
  return out;
}

}  // namespace tangram::kv
