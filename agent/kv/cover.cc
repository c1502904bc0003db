#include "agent/kv/cover.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace tangram::kv {
namespace {

Status Wrong(const std::string& message) { return Status(Code::kInternal, "KV plan: " + message); }

uint64_t Ceil(uint64_t tokens, uint64_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
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

// A block of a home for its requests.
struct Needed {
  uint32_t block = 0;  // new
  uint32_t old_home = 0, old_block = 0;
  uint32_t tokens = 0;
  auto origin() const { return std::pair(old_home, old_block); }
};

// For each new home, by name: the blocks of its requests, each once. kInternal: a name stands for
// two blocks, or a block has two names.
Result<std::vector<std::vector<Needed>>> NeededOf(const Input& in, const Plan& plan) {
  std::vector<std::vector<Needed>> out(in.new_ranks);
  const uint32_t bt = in.shape.block_tokens;
  for (size_t i = 0; i < in.requests.size(); ++i) {
    const Request& q = in.requests[i];
    const Placement& p = plan.requests[i];
    uint32_t left = q.length;
    for (size_t b = 0; b < p.blocks.size(); ++b) {
      const uint32_t tokens = std::min(left, bt);
      left -= tokens;
      out[p.home].push_back({p.blocks[b], q.home, q.blocks[b], tokens});
    }
  }
  for (uint32_t home = 0; home < in.new_ranks; ++home) {
    std::vector<Needed>& all = out[home];
    std::sort(all.begin(), all.end(), [](const Needed& x, const Needed& y) {
      return std::tuple(x.origin(), x.block) < std::tuple(y.origin(), y.block);
    });
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].origin() == all[i - 1].origin() && all[i].block != all[i - 1].block) {
        return Wrong(fmt::format("home {} gets block {} of old home {} twice", home,
                                 all[i].old_block, all[i].old_home));
      }
    }
    std::sort(all.begin(), all.end(), [](const Needed& x, const Needed& y) {
      return std::tuple(x.block, x.origin()) < std::tuple(y.block, y.origin());
    });
    size_t last = 0;
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].block != all[last].block) {
        all[++last] = all[i];
        continue;
      }
      if (all[i].origin() != all[last].origin()) {
        return Wrong(
            fmt::format("block {} of home {} is block {} of old home {} and block {} of "
                        "old home {}",
                        all[i].block, home, all[last].old_block, all[last].old_home,
                        all[i].old_block, all[i].old_home));
      }
      all[last].tokens = std::max(all[last].tokens, all[i].tokens);
    }
    if (!all.empty()) all.resize(last + 1);
  }
  return out;
}

// Checks that every layer's group of the home holds all KV heads.
Status CheckHeads(const Input& in, const std::string& request, uint32_t home) {
  for (uint32_t layer = 0; layer < in.new_groups.size(); ++layer) {
    if (layer > 0 && in.new_groups[layer] == in.new_groups[layer - 1]) continue;
    std::set<uint32_t> all;
    for (const Group& group : in.new_groups[layer]) {
      if (std::find(group.ranks.begin(), group.ranks.end(), home) == group.ranks.end()) continue;
      for (uint32_t q = group.query_head_bounds.front(); q < group.query_head_bounds.back(); ++q) {
        all.insert(q * in.shape.kv_heads / in.shape.query_heads);
      }
    }
    if (all.size() == in.shape.kv_heads) continue;
    return Wrong(fmt::format("request {}: home {} has {} of {} KV heads in layer {}", request, home,
                             all.size(), in.shape.kv_heads, layer));
  }
  return OkStatus();
}

// CheckHomes, and the blocks that each home needs.
Result<std::vector<std::vector<Needed>>> Homes(const Input& in, const Plan& plan) {
  if (plan.requests.size() != in.requests.size() || plan.next_block.size() != in.new_ranks) {
    return Wrong(fmt::format("{} requests and {} next blocks, not {} and {}", plan.requests.size(),
                             plan.next_block.size(), in.requests.size(), in.new_ranks));
  }
  std::set<uint32_t> homes;
  for (size_t i = 0; i < in.requests.size(); ++i) {
    const Request& q = in.requests[i];
    const Placement& p = plan.requests[i];
    if (in.only_changed &&
        (!std::equal(p.blocks.begin(), p.blocks.end(), q.blocks.begin(),
                     q.blocks.begin() +
                         static_cast<ptrdiff_t>(std::min(p.blocks.size(), q.blocks.size()))) ||
         (!p.blocks.empty() && p.home != q.home))) {
      return Wrong(
          fmt::format("request {} does not stay, and only layers that change are listed", q.id));
    }
    const uint64_t blocks = Ceil(q.length, in.shape.block_tokens);
    if (p.id != q.id || p.home >= in.new_ranks || p.blocks.size() != blocks) {
      return Wrong(fmt::format("request {} is placed as {} at home {} with {} blocks, not {}", q.id,
                               p.id, p.home, p.blocks.size(), blocks));
    }
    for (const uint32_t block : p.blocks) {
      if (block < plan.next_block[p.home]) continue;
      return Wrong(fmt::format("block {} of home {} is not below next_block", block, p.home));
    }
    if (homes.insert(p.home).second) TANGRAM_RETURN_IF_ERROR(CheckHeads(in, q.id, p.home));
  }
  return NeededOf(in, plan);
}

// Layers [layer, end) in which a rank needs a KV head of a home.
struct Lane {
  uint32_t head = 0, layer = 0, end = 0;
};

// By head, then by layer; `rest`: pages of a block in layers that are not listed.
std::vector<Lane> LanesOf(const Input& in, uint32_t home, uint32_t rank, uint64_t* rest) {
  std::vector<std::vector<Lane>> by_head(in.shape.kv_heads);
  std::set<uint32_t> heads;
  for (uint32_t layer = 0; layer < in.new_groups.size(); ++layer) {
    if (layer == 0 || in.new_groups[layer] != in.new_groups[layer - 1]) {
      heads = HeadsFor(in.shape, in.new_groups[layer], home, rank);
    }
    if (in.only_changed && in.new_groups[layer] == in.old_groups[layer]) {
      *rest += heads.size();
      continue;
    }
    for (const uint32_t head : heads) {
      std::vector<Lane>& lanes = by_head[head];
      if (lanes.empty() || lanes.back().end != layer) lanes.push_back({head, layer, layer});
      lanes.back().end = layer + 1;
    }
  }
  std::vector<Lane> out;
  for (const auto& lanes : by_head) out.insert(out.end(), lanes.begin(), lanes.end());
  return out;
}

// Executes one rank's part on names instead of bytes.
class Check {
 public:
  Check(const Input& in, const Plan& plan, const std::vector<std::vector<Needed>>& needed,
        uint32_t rank, const RankPlan& part)
      : in_(in),
        plan_(plan),
        needed_(needed),
        rank_(rank),
        part_(part),
        hints_(in.ranks.size()),
        lanes_(in.new_ranks),
        rest_(in.new_ranks, 0) {
    std::set<uint32_t> homes;
    for (const Placement& p : plan.requests) {
      if (homes.insert(p.home).second) lanes_[p.home] = LanesOf(in, p.home, rank, &rest_[p.home]);
    }
    const auto it =
        std::find(in.new_of_old.begin(), in.new_of_old.end(), static_cast<int32_t>(rank));
    if (it != in.new_of_old.end()) self_ = static_cast<int32_t>(it - in.new_of_old.begin());
  }

  Status Run() {
    for (uint32_t home = 0; home < in_.new_ranks; ++home) {
      for (const Needed& block : needed_[home]) {
        for (const Lane& lane : lanes_[home]) TANGRAM_RETURN_IF_ERROR(Fill(home, block, lane));
        present_ += rest_[home];
      }
    }
    if (kept_ < part_.kept.size()) return NotNeeded(part_.kept[kept_]);
    if (moved_ < part_.moves.size()) return NotNeeded(part_.moves[moved_]);
    TANGRAM_RETURN_IF_ERROR(CheckFreed());
    return CheckRoom();
  }

 private:
  // Pages of a block.
  struct Pages {
    uint32_t kv_head = 0, layer = 0, layers = 0;
  };
  // Layers of one of the rank's strips (by index) that are kept or freed.
  struct Use {
    size_t strip = 0;
    uint32_t layer = 0, layers = 0;
  };

  template <typename Piece>
  Status NotNeeded(const Piece& p) const {
    return Wrong(fmt::format("rank {} gets {}, which no request needs there and then", rank_,
                             Name(p.home, p.block, p.layer, p.kv_head)));
  }

  static std::string Name(uint32_t home, uint32_t block, uint32_t layer, uint32_t head) {
    return fmt::format("(home {}, block {}, layer {}, KV head {})", home, block, layer, head);
  }

  // Checks all layers of a lane, piece by piece: each is the next kept or moved one of the part.
  Status Fill(uint32_t home, const Needed& block, const Lane& lane) {
    for (uint32_t layer = lane.layer; layer < lane.end;) {
      const auto is = [&](const auto& pieces, size_t next) {
        return next < pieces.size() && pieces[next].home == home &&
               pieces[next].block == block.block && pieces[next].kv_head == lane.head &&
               pieces[next].layer == layer;
      };
      uint32_t layers = 0, tokens = 0;
      if (is(part_.kept, kept_)) {
        const Keep& k = part_.kept[kept_++];
        if (self_ < 0) return Wrong(fmt::format("new rank {} keeps page {}", rank_, k.page));
        const auto strip = Source(static_cast<uint32_t>(self_), k.page, k.stride, block,
                                  {k.kv_head, k.layer, k.layers});
        if (!strip.ok()) return strip.status();
        uses_.push_back({*strip, k.layer, k.layers});
        layers = k.layers, tokens = k.tokens;
      } else if (is(part_.moves, moved_)) {
        const Move& m = part_.moves[moved_++];
        if (m.source_rank >= in_.ranks.size()) {
          return Wrong(fmt::format("rank {} pulls from rank {}", rank_, m.source_rank));
        }
        const auto strip = Source(m.source_rank, m.source_page, m.source_stride, block,
                                  {m.kv_head, m.layer, m.layers});
        if (!strip.ok()) return strip.status();
        arriving_ += m.layers;
        layers = m.layers, tokens = m.tokens;
      } else {
        return Wrong(fmt::format("rank {} needs {} and does not get it there and then", rank_,
                                 Name(home, block.block, layer, lane.head)));
      }
      if (layers == 0 || layers > lane.end - layer) {
        return Wrong(fmt::format("rank {} gets {} layers of {}, {} are needed", rank_, layers,
                                 Name(home, block.block, layer, lane.head), lane.end - layer));
      }
      if (tokens != block.tokens) {
        return Wrong(fmt::format("rank {} gets {} tokens of {}, {} are filled", rank_, tokens,
                                 Name(home, block.block, layer, lane.head), block.tokens));
      }
      present_ += layers;
      layer += layers;
    }
    return OkStatus();
  }

  // The strip (by index) of an old rank that has a piece of a block at `page`, `stride` apart.
  Result<size_t> Source(uint32_t from, uint32_t page, uint32_t stride, const Needed& block,
                        const Pages& piece) {
    const std::vector<Strip>& strips = in_.ranks[from].strips;
    const std::tuple want(block.old_home, block.old_block, piece.kv_head, piece.layer);
    const auto before = [](const auto& name, const Strip& s) {
      return name < std::tuple(s.home, s.block, s.kv_head, s.layer);
    };
    // The last strip that begins no later. Pieces are in an order near to the source's.
    const auto holds = [&](size_t i) {
      return i < strips.size() && !before(want, strips[i]) &&
             (i + 1 == strips.size() || before(want, strips[i + 1]));
    };
    size_t& at = hints_[from];
    if (!holds(at) && !holds(++at)) {
      at = std::upper_bound(strips.begin(), strips.end(), want, before) - strips.begin();
      if (at > 0) --at;
    }
    if (at < strips.size()) {
      const Strip& s = strips[at];
      const bool named = s.home == block.old_home && s.block == block.old_block &&
                         s.kv_head == piece.kv_head && s.layer <= piece.layer &&
                         piece.layers <= s.layers &&
                         piece.layer - s.layer <= s.layers - piece.layers;
      const uint32_t skip = piece.layer - s.layer;
      if (named && page == s.page + skip * s.stride && (piece.layers < 2 || stride == s.stride)) {
        return at;
      }
    }
    return Wrong(fmt::format("rank {}: pages {}, {} apart, of rank {} are not {} layers of old {}",
                             rank_, page, stride, from, piece.layers,
                             Name(block.old_home, block.old_block, piece.layer, piece.kv_head)));
  }

  // Kept and freed strips are all strips of the rank, each page once.
  Status CheckFreed() {
    if (self_ < 0) {
      if (part_.freed.empty()) return OkStatus();
      return Wrong(fmt::format("new rank {} frees page {}", rank_, part_.freed[0].page));
    }
    const std::vector<Strip>& mine = in_.ranks[static_cast<size_t>(self_)].strips;
    for (const Strip& f : part_.freed) {
      const auto strip = Source(static_cast<uint32_t>(self_), f.page, f.stride,
                                Needed{0, f.home, f.block, 0}, {f.kv_head, f.layer, f.layers});
      if (!strip.ok()) return strip.status();
      uses_.push_back({*strip, f.layer, f.layers});
    }
    std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return std::pair(a.strip, a.layer) < std::pair(b.strip, b.layer);
    });
    auto next = uses_.begin();
    for (size_t i = 0; i < mine.size(); ++i) {
      uint32_t layer = mine[i].layer;
      const auto name = [&](uint32_t at) {
        return Name(mine[i].home, mine[i].block, at, mine[i].kv_head);
      };
      for (; next != uses_.end() && next->strip == i && next->layer <= layer; ++next) {
        if (next->layer < layer || next->layers == 0) {
          return Wrong(
              fmt::format("rank {} keeps or frees its old {} twice", rank_, name(next->layer)));
        }
        layer += next->layers;
      }
      if (layer != mine[i].layer + mine[i].layers) {
        return Wrong(fmt::format("rank {} leaks its old {}", rank_, name(layer)));
      }
    }
    return OkStatus();
  }

  // Arriving pages fit, and so do all reservations.
  Status CheckRoom() const {
    uint64_t total = 0, free = 0;
    if (self_ >= 0) {
      total = in_.ranks[static_cast<size_t>(self_)].total_pages;
      free = in_.ranks[static_cast<size_t>(self_)].free_pages;
    } else if (!in_.joined_pages.empty()) {
      total = free = in_.joined_pages[rank_];
    }
    if (arriving_ > free) {
      return Wrong(fmt::format("rank {} pulls {} pages and has {} free", rank_, arriving_, free));
    }
    uint64_t pages = present_;
    for (size_t i = 0; i < in_.requests.size(); ++i) {
      const Request& q = in_.requests[i];
      uint64_t per_block = rest_[plan_.requests[i].home];
      for (const Lane& lane : lanes_[plan_.requests[i].home]) per_block += lane.end - lane.layer;
      pages += per_block *
               (Ceil(q.reserved, in_.shape.block_tokens) - Ceil(q.length, in_.shape.block_tokens));
    }
    if (pages > total) {
      return Wrong(fmt::format("rank {} may come to {} pages and has {}", rank_, pages, total));
    }
    return OkStatus();
  }

  const Input& in_;
  const Plan& plan_;
  const std::vector<std::vector<Needed>>& needed_;  // [new homes]
  const uint32_t rank_;
  const RankPlan& part_;
  int32_t self_ = -1;                    // old number
  size_t kept_ = 0, moved_ = 0;          // number checked of the part
  uint64_t present_ = 0, arriving_ = 0;  // pages
  std::vector<Use> uses_;
  std::vector<size_t> hints_;             // [old ranks]: the strip found last
  std::vector<std::vector<Lane>> lanes_;  // [new homes]
  std::vector<uint64_t> rest_;            // [new homes]: pages of a block that are not listed
};

}  // namespace

Status CheckHomes(const Input& input, const Plan& plan) { return Homes(input, plan).status(); }

Status CheckPart(const Input& input, const Plan& plan, uint32_t rank, const RankPlan& part) {
  const auto needed = Homes(input, plan);
  if (!needed.ok()) return needed.status();
  return Check(input, plan, *needed, rank, part).Run();
}

Result<RankPlan> ProvenPart(const Input& input, const Plan& plan, uint32_t rank) {
  if (rank >= input.new_ranks) {
    return Wrong(fmt::format("a part of rank {} of {}", rank, input.new_ranks));
  }
  Result<RankPlan> part = MakePart(input, plan, rank);
  if (part.ok()) TANGRAM_RETURN_IF_ERROR(CheckPart(input, plan, rank, *part));
  return part;
}

}  // namespace tangram::kv
