#include "agent/kv/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace tangram::kv {
namespace {

Status Bad(const std::string& message) { return Status(Code::kInvalid, "KV manifest: " + message); }

Status ValidateGroups(const Shape& shape, const std::vector<LayerGroups>& layers, uint32_t ranks,
                      const char* side) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::set<uint32_t> seen;
    for (const Group& g : layers[layer]) {
      const auto& bounds = g.query_head_bounds;
      if (bounds.size() != g.ranks.size() + 1 || bounds.front() != 0 ||
          bounds.back() != shape.query_heads || !std::is_sorted(bounds.begin(), bounds.end())) {
        return Bad(
            fmt::format("{} layer {}: a group of {} ranks has {} bounds that do not cut {} "
                        "query heads in order",
                        side, layer, g.ranks.size(), bounds.size(), shape.query_heads));
      }
      for (uint32_t r : g.ranks) {
        if (r >= ranks || !seen.insert(r).second) {
          return Bad(fmt::format("{} layer {}: rank {} of {} is out of range or in two groups",
                                 side, layer, r, ranks));
        }
      }
    }
  }
  return OkStatus();
}

Status ValidatePages(const Input& in, uint32_t rank) {
  const RankState& state = in.ranks[rank];
  std::set<uint32_t> pages;
  std::set<std::pair<uint32_t, uint32_t>> names;
  for (const HeldBlock& b : state.blocks) {
    // The last number stays free: `next_block` is above every block's.
    if (b.block == UINT32_MAX) {
      return Bad(fmt::format("rank {} lists a block {}, the last number there is", rank, b.block));
    }
    if (b.home >= in.ranks.size() || !names.insert({b.home, b.block}).second) {
      return Bad(fmt::format("rank {} lists block {} of home {} twice, or there is no such home",
                             rank, b.block, b.home));
    }
    const size_t want = HeldOf(in.shape, in.old_groups, b.home, rank).size();
    if (b.pages.size() != want) {
      return Bad(fmt::format("rank {} has {} pages of block {} of home {}, its groups ask for {}",
                             rank, b.pages.size(), b.block, b.home, want));
    }
    for (uint32_t p : b.pages) {
      if (p >= state.total_pages || !pages.insert(p).second) {
        return Bad(fmt::format("rank {}: page {} of {} is out of range or used twice", rank, p,
                               state.total_pages));
      }
    }
  }
  if (pages.size() + state.free_pages > state.total_pages) {
    return Bad(fmt::format("rank {}: {} pages in blocks and {} free are more than its {}", rank,
                           pages.size(), state.free_pages, state.total_pages));
  }
  return OkStatus();
}

Status ValidateRequests(const Input& in) {
  std::vector<std::set<std::pair<uint32_t, uint32_t>>> held(in.ranks.size());
  for (size_t r = 0; r < in.ranks.size(); ++r) {
    for (const HeldBlock& b : in.ranks[r].blocks) held[r].insert({b.home, b.block});
  }
  std::set<std::string> ids;
  for (const Request& q : in.requests) {
    const uint32_t filled = BlocksOf(q.length, in.shape.block_tokens);
    if (!ids.insert(q.id).second) return Bad(fmt::format("request {} comes twice", q.id));
    if (q.home >= in.ranks.size() || q.length > q.reserved || q.blocks.size() < filled) {
      return Bad(fmt::format("request {}: home {} of {} ranks, length {}, reserved {}, {} blocks",
                             q.id, q.home, in.ranks.size(), q.length, q.reserved, q.blocks.size()));
    }
    if (std::set<uint32_t>(q.blocks.begin(), q.blocks.end()).size() != q.blocks.size()) {
      return Bad(fmt::format("request {} lists a block twice", q.id));
    }
    if (filled == 0) continue;
    for (size_t layer = 0; layer < in.old_groups.size(); ++layer) {
      size_t position;
      const Group* group = FindGroup(in.old_groups[layer], q.home, &position);
      if (group == nullptr) {
        return Bad(fmt::format("request {}: home {} is in no attention group of layer {}", q.id,
                               q.home, layer));
      }
      for (uint32_t r : group->ranks) {
        // More ranks than query heads: some have no head and hold nothing.
        if (HeldOf(in.shape, in.old_groups, q.home, r).empty()) continue;
        for (uint32_t b = 0; b < filled; ++b) {
          if (held[r].contains({q.home, q.blocks[b]})) continue;
          return Bad(fmt::format("request {}: rank {} has no pages of block {} of home {}", q.id, r,
                                 q.blocks[b], q.home));
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace

const Group* FindGroup(const LayerGroups& groups, uint32_t rank, size_t* position) {
  for (const Group& g : groups) {
    auto it = std::find(g.ranks.begin(), g.ranks.end(), rank);
    if (it == g.ranks.end()) continue;
    *position = it - g.ranks.begin();
    return &g;
  }
  return nullptr;
}

std::vector<LayerHead> HeldOf(const Shape& shape, const std::vector<LayerGroups>& groups,
                              uint32_t home, uint32_t rank) {
  std::vector<LayerHead> out;
  for (uint32_t layer = 0; layer < groups.size(); ++layer) {
    size_t mine, unused;
    const Group* group = FindGroup(groups[layer], rank, &mine);
    if (group == nullptr || group != FindGroup(groups[layer], home, &unused)) continue;
    const auto [begin, end] = HeldKvHeads(shape, *group, mine);
    for (uint32_t head = begin; head < end; ++head) out.push_back({layer, head});
  }
  return out;
}

Status Validate(const Input& in) {
  const Shape& s = in.shape;
  if (s.query_heads == 0 || s.kv_heads == 0 || s.query_heads % s.kv_heads != 0 ||
      s.block_tokens == 0 || s.head_token_bytes == 0 || s.head_token_bytes % 2 != 0) {
    return Bad(
        fmt::format("shape: {} query heads, {} KV heads, {} tokens a block, {} bytes a token",
                    s.query_heads, s.kv_heads, s.block_tokens, s.head_token_bytes));
  }
  const size_t old_ranks = in.ranks.size();
  if (in.old_groups.size() != in.new_groups.size() || in.new_of_old.size() != old_ranks ||
      (!in.joined_pages.empty() && in.joined_pages.size() != in.new_ranks)) {
    return Bad(fmt::format("{} layers before and {} after, {} ranks with {} new numbers",
                           in.old_groups.size(), in.new_groups.size(), old_ranks,
                           in.new_of_old.size()));
  }
  std::set<int32_t> numbers;
  for (int32_t n : in.new_of_old) {
    if (n == -1) continue;
    if (n < 0 || static_cast<uint32_t>(n) >= in.new_ranks || !numbers.insert(n).second) {
      return Bad(fmt::format("new number {} is given twice or outside {} ranks", n, in.new_ranks));
    }
  }
  TANGRAM_RETURN_IF_ERROR(
      ValidateGroups(s, in.old_groups, static_cast<uint32_t>(old_ranks), "old"));
  TANGRAM_RETURN_IF_ERROR(ValidateGroups(s, in.new_groups, in.new_ranks, "new"));
  for (uint32_t r = 0; r < old_ranks; ++r) TANGRAM_RETURN_IF_ERROR(ValidatePages(in, r));
  return ValidateRequests(in);
}

}  // namespace tangram::kv
