#include "agent/kv/sides.h"

#include <algorithm>

namespace tangram::kv {

Seats::Seats(const Shape& shape, const LayerGroups& groups, size_t ranks)
    : group_(ranks, -1), heads_(ranks), holders_(groups.size()) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    members_.push_back(group.ranks);
    holders_[g].resize(shape.kv_heads);
    for (size_t p = 0; p < group.ranks.size(); ++p) {
      const uint32_t rank = group.ranks[p];
      group_[rank] = static_cast<int32_t>(g);
      heads_[rank] = HeldKvHeads(shape, group, p);
      for (uint32_t head = heads_[rank].first; head < heads_[rank].second; ++head) {
        holders_[g][head].push_back(rank);
      }
    }
    for (std::vector<uint32_t>& holders : holders_[g]) std::sort(holders.begin(), holders.end());
  }
}

std::span<const uint32_t> Seats::With(uint32_t home) const {
  if (group_[home] < 0) return {};
  return members_[static_cast<size_t>(group_[home])];
}

std::span<const uint32_t> Seats::Holders(uint32_t home, uint32_t head) const {
  if (group_[home] < 0) return {};
  return holders_[static_cast<size_t>(group_[home])][head];
}

std::vector<bool> LayersThatChange(const std::vector<LayerGroups>& before,
                                   const std::vector<LayerGroups>& after) {
  std::vector<bool> out(after.size(), true);
  for (size_t layer = 0; layer < std::min(before.size(), after.size()); ++layer) {
    out[layer] = before[layer] != after[layer];
  }
  return out;
}

std::vector<Span> SpansOf(const Input& in) {
  std::vector<Span> out;
  for (uint32_t layer = 0; layer < in.old_groups.size(); ++layer) {
    if (layer > 0 && in.old_groups[layer] == in.old_groups[layer - 1] &&
        in.new_groups[layer] == in.new_groups[layer - 1]) {
      ++out.back().layers;
      continue;
    }
    out.push_back({layer, 1, Seats(in.shape, in.old_groups[layer], in.ranks.size()),
                   Seats(in.shape, in.new_groups[layer], in.new_ranks),
                   !in.only_changed || in.old_groups[layer] != in.new_groups[layer]});
  }
  return out;
}

uint64_t PagesBefore(const std::vector<Span>& spans, uint32_t home, uint32_t rank) {
  uint64_t pages = 0;
  for (const Span& span : spans) {
    if (span.listed) pages += uint64_t{CountOf(span.before.Of(home, rank))} * span.layers;
  }
  return pages;
}

uint64_t PagesAfter(const std::vector<Span>& spans, uint32_t home, uint32_t rank) {
  uint64_t pages = 0;
  for (const Span& span : spans)
    pages += uint64_t{CountOf(span.after.Of(home, rank))} * span.layers;
  return pages;
}

}  // namespace tangram::kv
