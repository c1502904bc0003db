// The smallest world with all parts of a KV plan, for tests: every page by its number.
#pragma once

#include "agent/kv/testing.h"

namespace tangram::kv::testing {

// The strips of blocks of one layer: pages by head, from the first of `head` on.
inline std::vector<Strip> OneLayer(
    const std::vector<std::tuple<uint32_t, uint32_t, uint32_t, std::vector<uint32_t>>>& blocks) {
  std::vector<Strip> out;
  for (const auto& [home, block, head, pages] : blocks) {
    for (uint32_t i = 0; i < pages.size(); ++i) {
      out.push_back({home, block, head + i, 0, 1, pages[i], 1});
    }
  }
  return out;
}

// Ranks 0 and 1, each alone, become one group: rank 0 computes the first two query heads, which
// read KV head 0, rank 1 the others. A block has 4 tokens.
inline Input SmallWorld() {
  Input in;
  in.shape = {4, 2, 4, 64};
  in.old_groups = {{{{0}, {0, 4}}, {{1}, {0, 4}}}};
  in.new_groups = {{{{0, 1}, {0, 2, 4}}}};
  in.new_of_old = {0, 1};
  in.new_ranks = 2;
  in.requests = {{"a", 0, 6, 12, {7, 9}}, {"b", 1, 4, 4, {7}}, {"c", 0, 4, 4, {7}}};
  in.ranks.resize(2);
  in.ranks[0] = {16, 12, OneLayer({{0, 7, 0, {3, 5}}, {0, 9, 0, {1, 2}}})};
  in.ranks[1] = {16, 14, OneLayer({{1, 7, 0, {0, 8}}})};
  return in;
}

// Each rank keeps its head's pages, pulls those of the other's requests, and frees the rest.
inline Whole SmallPlan() {
  Whole all;
  all.plan.requests = {{"a", 0, {7, 9}}, {"b", 1, {7}}, {"c", 0, {7}}};
  all.plan.blocks = {{{7, 0, 7, 4}, {9, 0, 9, 2}}, {{7, 1, 7, 4}}};
  all.plan.next_block = {10, 8};
  all.parts.resize(2);
  // home, block, head, layer, layers, page (and the source's rank before it), stride, tokens
  all.parts[0].kept = {{0, 7, 0, 0, 1, 3, 1, 4}, {0, 9, 0, 0, 1, 1, 1, 2}};
  all.parts[0].moves = {{1, 7, 0, 0, 1, 1, 0, 1, 4}};
  all.parts[0].freed = OneLayer({{0, 7, 1, {5}}, {0, 9, 1, {2}}});
  all.parts[0].moved_bytes = 4 * 64;
  all.parts[1].kept = {{1, 7, 1, 0, 1, 8, 1, 4}};
  all.parts[1].moves = {{0, 7, 1, 0, 1, 0, 5, 1, 4}, {0, 9, 1, 0, 1, 0, 2, 1, 2}};
  all.parts[1].freed = OneLayer({{1, 7, 0, {0}}});
  all.parts[1].moved_bytes = (4 + 2) * 64;
  return all;
}

}  // namespace tangram::kv::testing
