// The attention shardings before and after, by runs of layers that are alike in both. A rank's part
// of a home's blocks is looked up, not searched layer by layer.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "agent/kv/plan.h"

namespace tangram::kv {

// KV heads [first, second).
using Heads = std::pair<uint32_t, uint32_t>;

constexpr uint32_t CountOf(Heads heads) { return heads.second - heads.first; }
constexpr bool Has(Heads heads, uint32_t head) {
  return heads.first <= head && head < heads.second;
}

// The groups of one layer, by rank. Valid ones: a rank is in at most one.
class Seats {
 public:
  Seats(const Shape& shape, const LayerGroups& groups, size_t ranks);

  bool InGroup(uint32_t rank) const { return group_[rank] >= 0; }
  // The KV heads that `rank` holds of `home`'s blocks; {0, 0} if they are not in one group.
  Heads Of(uint32_t home, uint32_t rank) const {
    return Shared(home, rank) ? heads_[rank] : Heads{0, 0};
  }
  // Whether two ranks are in one group.
  bool Shared(uint32_t a, uint32_t b) const { return group_[a] >= 0 && group_[a] == group_[b]; }
  // The ranks that share requests with `home`, in the order of the group.
  std::span<const uint32_t> With(uint32_t home) const;
  // The ranks of these that hold a KV head, ascending.
  std::span<const uint32_t> Holders(uint32_t home, uint32_t head) const;

 private:
  std::vector<int32_t> group_;                               // [ranks]; -1: none
  std::vector<Heads> heads_;                                 // [ranks]
  std::vector<std::vector<uint32_t>> members_;               // [groups]
  std::vector<std::vector<std::vector<uint32_t>>> holders_;  // [groups][KV heads]
};

struct Span {
  uint32_t layer = 0, layers = 0;
  Seats before, after;
  bool listed = true;  // whether Input.only_changed lists strips of these layers
  uint32_t end() const { return layer + layers; }
};

// All layers, in order. The groups are valid.
std::vector<Span> SpansOf(const Input& input);

// Pages of one block of `home` on `rank`; PagesBefore: only in listed layers.
uint64_t PagesBefore(const std::vector<Span>& spans, uint32_t home, uint32_t rank);
uint64_t PagesAfter(const std::vector<Span>& spans, uint32_t home, uint32_t rank);

}  // namespace tangram::kv
