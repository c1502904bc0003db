// The cover check in its most readable form, page by page, for tests: the fast one must agree.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "agent/kv/testing.h"

namespace tangram::kv::testing {

// Executes all parts on names instead of bytes, and checks the result.
class PageCheck {
 public:
  PageCheck(const Input& in, const Whole& whole) : in_(in), whole_(whole), after_(in.new_ranks) {
    for (const RankState& state : in.ranks) {
      auto& pages = before_.emplace_back();
      for (const Strip& s : state.strips) {
        for (uint32_t i = 0; i < s.layers; ++i) {
          pages[s.page + i * s.stride] = {s.home, s.block, s.layer + i, s.kv_head};
        }
      }
    }
  }

  bool Right() {
    if (whole_.parts.size() != in_.new_ranks ||
        whole_.plan.requests.size() != in_.requests.size() ||
        whole_.plan.next_block.size() != in_.new_ranks) {
      return false;
    }
    for (uint32_t r = 0; r < in_.new_ranks; ++r) {
      if (!CarryOut(r)) return false;
    }
    for (size_t i = 0; i < in_.requests.size(); ++i) {
      if (!Finds(i)) return false;
    }
    for (uint32_t r = 0; r < in_.new_ranks; ++r) {
      for (const auto& [name, content] : after_[r]) {
        if (!content.needed || content.tokens != filled_[{r, name}]) return false;
      }
      if (!HasRoom(r)) return false;
    }
    return true;
  }

 private:
  using Name = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;  // home, block, layer, KV head
  struct Content {
    Name origin;  // in the old world
    uint32_t tokens = 0;
    bool needed = false;
  };

  // Query head by query head.
  std::set<uint32_t> HeadsFor(uint32_t layer, uint32_t home, uint32_t rank) const {
    std::set<uint32_t> heads;
    for (const Group& g : in_.new_groups[layer]) {
      if (std::count(g.ranks.begin(), g.ranks.end(), home) == 0) continue;
      for (size_t p = 0; p < g.ranks.size(); ++p) {
        for (uint32_t q = g.query_head_bounds[p];
             g.ranks[p] == rank && q < g.query_head_bounds[p + 1]; ++q) {
          heads.insert(q * in_.shape.kv_heads / in_.shape.query_heads);
        }
      }
    }
    return heads;
  }

  int32_t OldRank(uint32_t rank) const {
    const auto it =
        std::find(in_.new_of_old.begin(), in_.new_of_old.end(), static_cast<int32_t>(rank));
    return it == in_.new_of_old.end() ? -1 : static_cast<int32_t>(it - in_.new_of_old.begin());
  }

  bool Put(uint32_t rank, uint32_t from, uint32_t page, const Name& name, uint32_t tokens) {
    if (from >= before_.size()) return false;
    const auto source = before_[from].find(page);
    return source != before_[from].end() &&
           after_[rank].emplace(name, Content{source->second, tokens}).second;
  }

  bool CarryOut(uint32_t rank) {
    const RankPlan& part = whole_.parts[rank];
    const int32_t self = OldRank(rank);
    std::set<uint32_t> accounted;
    for (const Keep& k : part.kept) {
      for (uint32_t i = 0; i < k.layers; ++i) {
        const uint32_t page = k.page + i * k.stride;
        if (self < 0 || !accounted.insert(page).second ||
            !Put(rank, static_cast<uint32_t>(self), page, {k.home, k.block, k.layer + i, k.kv_head},
                 k.tokens)) {
          return false;
        }
      }
    }
    for (const Strip& s : part.freed) {
      for (uint32_t i = 0; i < s.layers; ++i) {
        const uint32_t page = s.page + i * s.stride;
        if (self < 0 || !before_[self].contains(page) || !accounted.insert(page).second)
          return false;
      }
    }
    if (self >= 0 && accounted.size() != before_[self].size()) return false;
    uint64_t arriving = 0;
    for (const Move& m : part.moves) {
      arriving += m.layers;
      for (uint32_t i = 0; i < m.layers; ++i) {
        if (!Put(rank, m.source_rank, m.source_page + i * m.source_stride,
                 {m.home, m.block, m.layer + i, m.kv_head}, m.tokens)) {
          return false;
        }
      }
    }
    return arriving <= Free(rank);
  }

  bool Finds(size_t index) {
    const Request& q = in_.requests[index];
    const Placement& p = whole_.plan.requests[index];
    const uint32_t bt = in_.shape.block_tokens;
    const auto blocks = static_cast<uint32_t>((uint64_t{q.length} + bt - 1) / bt);
    if (p.id != q.id || p.home >= in_.new_ranks || p.blocks.size() != blocks) return false;
    for (uint32_t b = 0; b < blocks; ++b) {
      const auto [it, added] =
          copies_.emplace(std::tuple(p.home, q.home, q.blocks[b]), p.blocks[b]);
      if ((!added && it->second != p.blocks[b]) || p.blocks[b] >= whole_.plan.next_block[p.home])
        return false;
    }
    for (uint32_t layer = 0; layer < in_.new_groups.size(); ++layer) {
      std::set<uint32_t> all_heads;
      for (uint32_t r = 0; r < in_.new_ranks; ++r) {
        for (const uint32_t head : HeadsFor(layer, p.home, r)) {
          all_heads.insert(head);
          for (uint32_t b = 0; b < blocks; ++b) {
            const Name name{p.home, p.blocks[b], layer, head};
            const auto at = after_[r].find(name);
            if (at == after_[r].end() ||
                at->second.origin != Name{q.home, q.blocks[b], layer, head})
              return false;
            at->second.needed = true;
            uint32_t& filled = filled_[{r, name}];
            filled = std::max(filled, std::min(bt, q.length - b * bt));
          }
        }
      }
      if (all_heads.size() != in_.shape.kv_heads) return false;
    }
    return true;
  }

  // The pages in use plus the reservations fit.
  bool HasRoom(uint32_t rank) const {
    const uint64_t bt = in_.shape.block_tokens;
    uint64_t pages = after_[rank].size();
    for (size_t i = 0; i < in_.requests.size(); ++i) {
      const Request& q = in_.requests[i];
      uint64_t heads = 0;
      for (uint32_t layer = 0; layer < in_.new_groups.size(); ++layer) {
        heads += HeadsFor(layer, whole_.plan.requests[i].home, rank).size();
      }
      pages += heads * ((q.reserved + bt - 1) / bt - (q.length + bt - 1) / bt);
    }
    const int32_t self = OldRank(rank);
    return pages <= (self >= 0 ? in_.ranks[self].total_pages : Joined(rank));
  }

  uint64_t Free(uint32_t rank) const {
    const int32_t self = OldRank(rank);
    return self >= 0 ? in_.ranks[self].free_pages : Joined(rank);
  }
  uint64_t Joined(uint32_t rank) const {
    return in_.joined_pages.empty() ? 0 : in_.joined_pages[rank];
  }

  const Input& in_;
  const Whole& whole_;
  std::vector<std::map<uint32_t, Name>> before_;  // [old ranks], by page
  std::vector<std::map<Name, Content>> after_;    // [new ranks]
  std::map<std::pair<uint32_t, Name>, uint32_t> filled_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> copies_;
};

}  // namespace tangram::kv::testing
