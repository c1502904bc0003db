// Random worlds for tests: manifests of all kinds, from any groups to any others.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "agent/kv/cover.h"
#include "agent/kv/plan.h"
#include "agent/kv/validate.h"

namespace tangram::kv::testing {

using Rng = std::mt19937;

// A plan with the parts of all ranks.
struct Whole {
  Plan plan;
  std::vector<RankPlan> parts;  // [new ranks]
};

inline Result<Whole> MakeWhole(const Input& in) {
  Result<Plan> plan = MakePlan(in);
  if (!plan.ok()) return plan.status();
  Whole out{std::move(*plan), {}};
  for (uint32_t r = 0; r < in.new_ranks; ++r) {
    Result<RankPlan> part = MakePart(in, out.plan, r);
    if (!part.ok()) return part.status();
    out.parts.push_back(std::move(*part));
  }
  return out;
}

// The first error of a check, in order of ranks.
inline Status CheckWhole(const Input& in, const Whole& whole) {
  TANGRAM_RETURN_IF_ERROR(CheckHomes(in, whole.plan));
  for (uint32_t r = 0; r < in.new_ranks; ++r) {
    TANGRAM_RETURN_IF_ERROR(CheckPart(in, whole.plan, r, whole.parts[r]));
  }
  return OkStatus();
}

inline uint32_t Pick(Rng& rng, uint32_t low, uint32_t high) {
  return low + rng() % (high - low + 1);
}

// t ranks over the query heads, in sizes as equal as possible.
inline Group MakeGroup(std::vector<uint32_t> ranks, uint32_t query_heads) {
  Group g{std::move(ranks), {}};
  const auto t = static_cast<uint32_t>(g.ranks.size());
  for (uint32_t p = 0; p <= t; ++p) g.query_head_bounds.push_back(p * query_heads / t);
  return g;
}

// Groups of t over the given ranks; the remainder makes a smaller group.
inline LayerGroups Cut(const std::vector<uint32_t>& ranks, uint32_t t, uint32_t query_heads) {
  LayerGroups out;
  for (size_t i = 0; i < ranks.size(); i += t) {
    out.push_back(
        MakeGroup({ranks.begin() + i, ranks.begin() + std::min(ranks.size(), i + t)}, query_heads));
  }
  return out;
}

inline std::vector<uint32_t> Shuffled(Rng& rng, uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0);
  std::shuffle(out.begin(), out.end(), rng);
  return out;
}

// The free pages of a rank, given out in random order.
class FreePages {
 public:
  FreePages(Rng& rng, uint32_t total)
      : rng_(rng), free_(total, true), order_(Shuffled(rng, total)) {}

  uint32_t left() const { return left_; }

  // A strip for `layers` layers, if that many pages are free at a random distance; else for one.
  Strip Take(uint32_t layers) {
    Strip out;
    for (int attempt = 0; attempt < 4 && layers > 1; ++attempt) {
      out.page = rng_() % static_cast<uint32_t>(free_.size());
      out.stride = Pick(rng_, 1, 5);
      out.layers = layers;
      bool fits = true;
      for (uint32_t i = 0; i < layers; ++i) fits = fits && Free(out.page + i * out.stride);
      if (!fits) continue;
      for (uint32_t i = 0; i < layers; ++i) Use(out.page + i * out.stride);
      return out;
    }
    while (!order_.empty() && !Free(order_.back())) order_.pop_back();
    if (order_.empty()) throw std::logic_error("the test gives too few pages");
    out.page = order_.back();
    out.stride = Pick(rng_, 0, 2);  // for one layer it has no meaning
    out.layers = 1;
    Use(out.page);
    return out;
  }

 private:
  bool Free(uint32_t page) const { return page < free_.size() && free_[page]; }
  void Use(uint32_t page) {
    free_[page] = false;
    --left_;
  }

  Rng& rng_;
  std::vector<bool> free_;
  std::vector<uint32_t> order_;
  uint32_t left_ = static_cast<uint32_t>(free_.size());
};

// Fills the page tables of all ranks for the blocks of the requests: strips of any cut and any
// stride, at random places.
inline void GivePages(Rng& rng, Input& in, uint32_t total, uint32_t spare_denominator) {
  std::set<std::pair<uint32_t, uint32_t>> blocks;
  for (const Request& q : in.requests) {
    for (uint32_t b : q.blocks) blocks.insert({q.home, b});
  }
  const std::vector<Span> spans = SpansOf(in);
  for (uint32_t r = 0; r < in.ranks.size(); ++r) {
    RankState& state = in.ranks[r];
    state.total_pages = total;
    FreePages free(rng, total);
    for (const auto& [its_home, block] : blocks) {
      const auto home = its_home;  // clang 14 captures no structured bindings
      for (uint32_t head = 0; head < in.shape.kv_heads; ++head) {
        // Runs of layers in which the rank has the head, cut anywhere, also at the borders of
        // spans.
        const auto layers = static_cast<uint32_t>(in.old_groups.size());
        const auto has = [&](uint32_t layer) {
          return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
            return span.layer <= layer && layer < span.end() && Has(span.before.Of(home, r), head);
          });
        };
        for (uint32_t layer = 0; layer < layers;) {
          uint32_t end = layer;
          while (end < layers && has(end)) ++end;
          if (end == layer) {
            ++layer;
            continue;
          }
          Strip strip = free.Take(Pick(rng, 1, end - layer));
          strip.home = home, strip.block = block, strip.kv_head = head, strip.layer = layer;
          layer += strip.layers;
          state.strips.push_back(strip);
        }
      }
    }
    state.free_pages = free.left() / spare_denominator;
  }
}

inline void AddRequests(Rng& rng, Input& in, const std::vector<uint32_t>& homes, uint32_t count) {
  std::map<uint32_t, std::vector<uint32_t>> chain;  // per home: blocks of a shared prefix
  std::map<uint32_t, uint32_t> next;
  const uint32_t bt = in.shape.block_tokens;
  for (uint32_t i = 0; i < count; ++i) {
    Request q;
    q.id = fmt::format("r{}", i);
    q.home = homes[rng() % homes.size()];
    q.length = rng() % 5 == 0 ? 0 : Pick(rng, 1, 6 * bt);
    q.reserved = q.length + Pick(rng, 0, 3 * bt);
    // Whole blocks are shared; sometimes one block more is allocated than filled.
    const uint32_t filled = (q.length + bt - 1) / bt;
    const uint32_t want = filled + (rng() % 4 == 0 ? 1 : 0);
    auto& prefix = chain[q.home];
    const uint32_t shared =
        rng() % 2 ? std::min<uint32_t>(q.length / bt, static_cast<uint32_t>(prefix.size())) : 0;
    q.blocks.assign(prefix.begin(), prefix.begin() + shared);
    while (q.blocks.size() < want) q.blocks.push_back(next[q.home] += Pick(rng, 1, 3));
    if (rng() % 2) prefix.assign(q.blocks.begin(), q.blocks.begin() + q.length / bt);
    q.idle = i % 5 == 4;
    in.requests.push_back(q);
  }
}

// Any world to any other: P -> Q, mixed group sizes per layer, renumbered ranks.
inline Input RandomInput(Rng& rng, uint32_t total_pages, uint32_t spare_denominator) {
  Input in;
  in.shape.kv_heads = Pick(rng, 1, 4);
  in.shape.query_heads = in.shape.kv_heads * Pick(rng, 1, 4);
  in.shape.block_tokens = Pick(rng, 1, 8);
  in.shape.head_token_bytes = 64;
  const uint32_t old_ranks = Pick(rng, 1, 8), layers = Pick(rng, 1, 4);
  in.new_ranks = Pick(rng, 1, 8);
  in.new_of_old.assign(old_ranks, -1);
  const auto order = Shuffled(rng, in.new_ranks);
  for (uint32_t o = 0; o < std::min(old_ranks, in.new_ranks); ++o) {
    if (rng() % 8) in.new_of_old[o] = static_cast<int32_t>(order[o]);
  }
  in.joined_pages.assign(in.new_ranks, total_pages);
  for (int32_t n : in.new_of_old) {
    if (n >= 0) in.joined_pages[n] = 0;
  }
  const auto old_order = Shuffled(rng, old_ranks);
  const auto new_order = Shuffled(rng, in.new_ranks);
  // Some joiners stay outside of all groups.
  const uint32_t inside = Pick(rng, 1, in.new_ranks);
  const std::vector<uint32_t> new_inside(new_order.begin(), new_order.begin() + inside);
  for (uint32_t l = 0; l < layers; ++l) {
    in.old_groups.push_back(Cut(old_order, Pick(rng, 1, old_ranks), in.shape.query_heads));
    in.new_groups.push_back(rng() % 3 == 0 && inside == old_ranks && in.new_ranks == old_ranks
                                ? in.old_groups.back()
                                : Cut(new_inside, Pick(rng, 1, inside), in.shape.query_heads));
  }
  in.ranks.resize(old_ranks);
  AddRequests(rng, in, old_order, Pick(rng, 0, 12));
  GivePages(rng, in, total_pages, spare_denominator);
  return in;
}

}  // namespace tangram::kv::testing
