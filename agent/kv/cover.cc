#include "agent/kv/cover.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tangram::kv {
namespace {

using Name = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;  // home, block, layer, KV head

struct Content {
  Name origin;  // in the old world
  uint32_t tokens = 0;
  bool needed = false;
};

Status Wrong(const std::string& message) { return Status(Code::kInternal, "KV plan: " + message); }

std::string Print(const Name& n) {
  return fmt::format("(home {}, block {}, layer {}, KV head {})", std::get<0>(n), std::get<1>(n),
                     std::get<2>(n), std::get<3>(n));
}

// KV heads that the rank must hold for the home in one layer; derived query head by query head,
// unlike the planner's.
std::set<uint32_t> HeadsFor(const Shape& shape, const LayerGroups& groups, uint32_t home,
                            uint32_t rank) {
  std::set<uint32_t> heads;
  for (const Group& g : groups) {
    bool has_home = false;
    for (uint32_t r : g.ranks) has_home |= r == home;
    if (!has_home) continue;
    for (size_t p = 0; p < g.ranks.size(); ++p) {
      if (g.ranks[p] != rank) continue;
      for (uint32_t q = g.query_head_bounds[p]; q < g.query_head_bounds[p + 1]; ++q) {
        heads.insert(q * shape.kv_heads / shape.query_heads);
      }
    }
  }
  return heads;
}

// page -> what lies there, for one old rank.
std::map<uint32_t, Name> ReadPageTable(const Input& in, uint32_t rank) {
  std::map<uint32_t, Name> out;
  for (const HeldBlock& b : in.ranks[rank].blocks) {
    size_t i = 0;
    for (uint32_t layer = 0; layer < in.old_groups.size(); ++layer) {
      for (uint32_t head : HeadsFor(in.shape, in.old_groups[layer], b.home, rank)) {
        if (i < b.pages.size()) out[b.pages[i++]] = {b.home, b.block, layer, head};
      }
    }
  }
  return out;
}

class Check {
 public:
  Check(const Input& in, const Plan& plan) : in_(in), plan_(plan), after_(in.new_ranks) {
    for (uint32_t r = 0; r < in.ranks.size(); ++r) before_.push_back(ReadPageTable(in, r));
  }

  Status Run() {
    if (plan_.ranks.size() != in_.new_ranks || plan_.requests.size() != in_.requests.size() ||
        plan_.next_block.size() != in_.new_ranks) {
      return Wrong(fmt::format("{} ranks, {} requests and {} next blocks, not {}, {} and {}",
                               plan_.ranks.size(), plan_.requests.size(), plan_.next_block.size(),
                               in_.new_ranks, in_.requests.size(), in_.new_ranks));
    }
    for (uint32_t r = 0; r < in_.new_ranks; ++r) TANGRAM_RETURN_IF_ERROR(CarryOut(r));
    for (size_t i = 0; i < in_.requests.size(); ++i) TANGRAM_RETURN_IF_ERROR(CheckRequest(i));
    for (uint32_t r = 0; r < in_.new_ranks; ++r) {
      for (const auto& [name, content] : after_[r]) {
        if (!content.needed) {
          return Wrong(fmt::format("rank {} gets {}, which no request needs", r, Print(name)));
        }
        if (content.tokens != filled_[{r, name}]) {
          return Wrong(fmt::format("rank {} gets {} tokens of {}, {} are filled", r, content.tokens,
                                   Print(name), filled_[{r, name}]));
        }
      }
    }
    return CheckRoom();
  }

 private:
  int32_t OldRank(uint32_t rank) const {
    auto it = std::find(in_.new_of_old.begin(), in_.new_of_old.end(), static_cast<int32_t>(rank));
    return it == in_.new_of_old.end() ? -1 : static_cast<int32_t>(it - in_.new_of_old.begin());
  }

  Status Put(uint32_t rank, uint32_t from, uint32_t page, const Name& name, uint32_t tokens) {
    if (from >= before_.size()) return Wrong(fmt::format("rank {} pulls from rank {}", rank, from));
    auto source = before_[from].find(page);
    if (source == before_[from].end()) {
      return Wrong(fmt::format("page {} of rank {} holds nothing", page, from));
    }
    if (!after_[rank].emplace(name, Content{source->second, tokens}).second) {
      return Wrong(fmt::format("rank {} gets {} twice", rank, Print(name)));
    }
    return OkStatus();
  }

  Status CarryOut(uint32_t rank) {
    const RankPlan& part = plan_.ranks[rank];
    const int32_t self = OldRank(rank);
    std::set<uint32_t> accounted;
    for (const Keep& k : part.kept) {
      if (self < 0) return Wrong(fmt::format("new rank {} keeps page {}", rank, k.page));
      if (!accounted.insert(k.page).second) {
        return Wrong(fmt::format("rank {} keeps page {} twice", rank, k.page));
      }
      TANGRAM_RETURN_IF_ERROR(Put(rank, static_cast<uint32_t>(self), k.page,
                                  {k.home, k.block, k.layer, k.kv_head}, k.tokens));
    }
    for (uint32_t page : part.freed) {
      if (self < 0 || !before_[self].contains(page) || !accounted.insert(page).second) {
        return Wrong(fmt::format("rank {} frees page {}, which is free or kept", rank, page));
      }
    }
    if (self >= 0 && accounted.size() != before_[self].size()) {
      return Wrong(
          fmt::format("rank {} leaks {} pages", rank, before_[self].size() - accounted.size()));
    }
    for (const Move& m : part.moves) {
      TANGRAM_RETURN_IF_ERROR(
          Put(rank, m.source_rank, m.source_page, {m.home, m.block, m.layer, m.kv_head}, m.tokens));
    }
    const uint32_t free = self >= 0                  ? in_.ranks[self].free_pages
                          : in_.joined_pages.empty() ? 0
                                                     : in_.joined_pages[rank];
    if (part.moves.size() > free) {
      return Wrong(
          fmt::format("rank {} pulls {} pages and has {} free", rank, part.moves.size(), free));
    }
    return OkStatus();
  }

  Status CheckRequest(size_t index) {
    const Request& q = in_.requests[index];
    const Placement& p = plan_.requests[index];
    const uint32_t bt = in_.shape.block_tokens;
    const auto blocks = static_cast<uint32_t>((uint64_t{q.length} + bt - 1) / bt);
    if (p.id != q.id || p.home >= in_.new_ranks || p.blocks.size() != blocks) {
      return Wrong(fmt::format("request {} is placed as {} at home {} with {} blocks, not {}", q.id,
                               p.id, p.home, p.blocks.size(), blocks));
    }
    for (uint32_t b = 0; b < blocks; ++b) {
      auto [it, added] = copies_.emplace(std::tuple(p.home, q.home, q.blocks[b]), p.blocks[b]);
      if (!added && it->second != p.blocks[b]) {
        return Wrong(
            fmt::format("home {} gets block {} of old home {} twice", p.home, q.blocks[b], q.home));
      }
      if (p.blocks[b] >= plan_.next_block[p.home]) {
        return Wrong(
            fmt::format("block {} of home {} is not below next_block", p.blocks[b], p.home));
      }
    }
    for (uint32_t layer = 0; layer < in_.new_groups.size(); ++layer) {
      std::set<uint32_t> all_heads;
      for (uint32_t r = 0; r < in_.new_ranks; ++r) {
        for (uint32_t head : HeadsFor(in_.shape, in_.new_groups[layer], p.home, r)) {
          all_heads.insert(head);
          for (uint32_t b = 0; b < blocks; ++b) {
            const Name name{p.home, p.blocks[b], layer, head};
            const Name origin{q.home, q.blocks[b], layer, head};
            auto at = after_[r].find(name);
            if (at == after_[r].end() || at->second.origin != origin) {
              return Wrong(fmt::format(
                  "request {} needs {} on rank {}; there is {}", q.id, Print(name), r,
                  at == after_[r].end() ? "nothing" : "old " + Print(at->second.origin)));
            }
            at->second.needed = true;
            uint32_t& filled = filled_[{r, name}];
            filled = std::max(filled, std::min(bt, q.length - b * bt));
          }
        }
      }
      if (all_heads.size() != in_.shape.kv_heads) {
        return Wrong(fmt::format("request {}: home {} has {} of {} KV heads in layer {}", q.id,
                                 p.home, all_heads.size(), in_.shape.kv_heads, layer));
      }
    }
    return OkStatus();
  }

  // What is there plus what may still be asked for.
  Status CheckRoom() {
    const uint64_t bt = in_.shape.block_tokens;
    for (uint32_t r = 0; r < in_.new_ranks; ++r) {
      uint64_t pages = after_[r].size();
      for (size_t i = 0; i < in_.requests.size(); ++i) {
        const Request& q = in_.requests[i];
        uint64_t heads = 0;
        for (const LayerGroups& g : in_.new_groups) {
          heads += HeadsFor(in_.shape, g, plan_.requests[i].home, r).size();
        }
        pages += heads * ((q.reserved + bt - 1) / bt - (q.length + bt - 1) / bt);
      }
      const int32_t self = OldRank(r);
      const uint64_t total = self >= 0                  ? in_.ranks[self].total_pages
                             : in_.joined_pages.empty() ? 0
                                                        : in_.joined_pages[r];
      if (pages > total) {
        return Wrong(fmt::format("rank {} may come to {} pages and has {}", r, pages, total));
      }
    }
    return OkStatus();
  }

  const Input& in_;
  const Plan& plan_;
  std::vector<std::map<uint32_t, Name>> before_;  // [old ranks]
  std::vector<std::map<Name, Content>> after_;    // [new ranks]
  std::map<std::pair<uint32_t, Name>, uint32_t> filled_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> copies_;
};

}  // namespace

Status CoverCheck(const Input& input, const Plan& plan) { return Check(input, plan).Run(); }

}  // namespace tangram::kv
