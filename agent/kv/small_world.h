// The smallest world with all parts of a KV plan, for tests: every page by its number.
#pragma once

#include "agent/kv/plan.h"

namespace tangram::kv::testing {

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
  in.ranks[0] = {16, 12, {{0, 7, {3, 5}}, {0, 9, {1, 2}}}};
  in.ranks[1] = {16, 14, {{1, 7, {0, 8}}}};
  return in;
}

// Each rank keeps its head's pages, pulls those of the other's requests, and frees the rest.
inline Plan SmallPlan() {
  Plan plan;
  plan.requests = {{"a", 0, {7, 9}}, {"b", 1, {7}}, {"c", 0, {7}}};
  plan.ranks.resize(2);
  plan.ranks[0].kept = {{3, 0, 0, 0, 7, 4}, {1, 0, 0, 0, 9, 2}};
  plan.ranks[0].moves = {{1, 0, 0, 0, 1, 7, 4}};
  plan.ranks[0].freed = {2, 5};
  plan.ranks[1].kept = {{8, 0, 1, 1, 7, 4}};
  plan.ranks[1].moves = {{0, 5, 0, 1, 0, 7, 4}, {0, 2, 0, 1, 0, 9, 2}};
  plan.ranks[1].freed = {0};
  plan.next_block = {10, 8};
  plan.moved_bytes = (4 + 4 + 2) * 64;
  return plan;
}

}  // namespace tangram::kv::testing
