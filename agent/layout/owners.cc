#include "agent/layout/owners.h"

#include <algorithm>

namespace tangram::layout {

Owners::Owners(const v1::Layout& layout, const GeometryView& geometry)
    : layout_(layout), geometry_(geometry) {
  const uint32_t experts = geometry.experts();
  start_.assign(size_t{geometry.moe_layers()} * experts + 1, 0);
  const auto each = [&](auto&& visit) {
    for (const v1::LayerLayout& layer : layout.layers()) {
      const int32_t ordinal = geometry.ordinal(layer.layer());
      for (int g = 0; g < layer.experts_size(); ++g) {
        for (const uint32_t slot : layer.experts(g).slots()) {
          if (slot != 0) visit(size_t(ordinal) * experts + slot - 1, static_cast<uint32_t>(g));
        }
      }
    }
  };
  each([&](size_t at, uint32_t) { ++start_[at + 1]; });
  for (size_t i = 1; i < start_.size(); ++i) start_[i] += start_[i - 1];
  groups_.resize(start_.back());
  std::vector<uint32_t> next = start_;
  each([&](size_t at, uint32_t group) { groups_[next[at]++] = group; });
}

std::vector<uint32_t> Owners::Holders(uint32_t layer, uint32_t expert, Run run) const {
  std::vector<uint32_t> out;
  const int32_t ordinal = geometry_.ordinal(layer);
  if (ordinal < 0 || expert >= geometry_.experts()) return out;
  const uint64_t end = uint64_t{run.start} + run.count;
  const size_t at = size_t(ordinal) * geometry_.experts() + expert;
  for (uint32_t i = start_[at]; i < start_[at + 1]; ++i) {
    const v1::ExpertGroup& group =
        layout_.layers(static_cast<int>(layer)).experts(static_cast<int>(groups_[i]));
    const auto size = static_cast<uint32_t>(group.ranks_size());
    for (uint32_t position = 0; position < size; ++position) {
      const Run has = ShardOf(geometry_.granules(), size, expert, position);
      if (run.count == 0 || (has.start <= run.start && end <= uint64_t{has.start} + has.count)) {
        out.push_back(group.ranks(static_cast<int>(position)));
      }
    }
  }
  return out;
}

bool Owners::Give(uint32_t layer, uint32_t expert, Run run, const std::vector<bool>& ranks) const {
  const std::vector<uint32_t> holders = Holders(layer, expert, run);
  return std::any_of(holders.begin(), holders.end(), [&](uint32_t rank) { return ranks[rank]; });
}

}  // namespace tangram::layout
