#include "e2e/engine/kv/held_map.h"

namespace tangram::engine {

HeldMap::HeldMap(const std::vector<kv::LayerGroups>& groups, const kv::Shape& shape, uint32_t ranks)
    : ranks_(ranks), kv_heads_(shape.kv_heads) {
  for (uint32_t l = 0; l < groups.size(); ++l) {
    if (l > 0 && groups[l] == groups[l - 1]) {
      ++runs_.back().layers;
    } else {
      runs_.push_back({l, 1, kv::Seats(shape, groups[l], ranks)});
    }
    run_of_.push_back(static_cast<uint32_t>(runs_.size()) - 1);
  }
  cost_.resize(size_t{ranks} * ranks);
  accepts_.assign(ranks, true);
  for (const Run& run : runs_) {
    for (uint32_t home = 0; home < ranks; ++home) {
      accepts_[home] = accepts_[home] && run.seats.InGroup(home);
      for (const uint32_t rank : run.seats.With(home)) {
        cost_[size_t{home} * ranks + rank] += kv::CountOf(run.seats.Of(home, rank)) * run.layers;
      }
    }
  }
}

std::vector<HeldMap::Lane> HeldMap::Lanes(uint32_t home, uint32_t rank) const {
  std::vector<Lane> out;
  for (uint32_t head = 0; head < kv_heads_; ++head) {
    bool beside = false;  // the previous run has it, too
    for (const Run& run : runs_) {
      const bool has = kv::Has(run.seats.Of(home, rank), head);
      if (has && beside) {
        out.back().layers += run.layers;
      } else if (has) {
        out.push_back({head, run.layer, run.layers});
      }
      beside = has;
    }
  }
  return out;
}

}  // namespace tangram::engine
