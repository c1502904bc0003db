#include "e2e/engine/pace/pacer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace tangram::engine {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): one draw from a seed.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Ranks without a part of the layer do not count. If a rank holds two shares of each expert because
// another rank died, the remaining ranks share the experts.
PaceShape ShapeOf(const tg_layer_map& layer, const kv::LayerGroups& groups, uint32_t experts) {
  PaceShape out;
  std::set<uint32_t> ranks;
  for (const kv::Group& group : groups) {
    ranks.insert(group.ranks.begin(), group.ranks.end());
    out.attention_group = std::max(out.attention_group, static_cast<uint32_t>(group.ranks.size()));
  }
  for (uint32_t e = 0; e < experts; ++e) {
    const tg_expert& expert = layer.experts[e];
    for (uint32_t i = 0; i < expert.replicas * expert.shards; ++i) {
      ranks.insert(expert.pieces[i].rank);
    }
  }
  out.ranks = static_cast<uint32_t>(ranks.size());
  out.expert_group = std::min(layer.experts[0].shards, out.ranks);
  return out;
}

std::vector<std::vector<uint32_t>> RanksOf(const kv::LayerGroups& groups) {
  std::vector<std::vector<uint32_t>> out;
  for (const kv::Group& group : groups) out.push_back(group.ranks);
  return out;
}

}  // namespace

Result<PacedLayout> Pacer::LayoutOf(const tg_maps& maps, std::span<const kv::LayerGroups> groups,
                                    uint32_t experts, bool nearest, std::string* told) const {
  PacedLayout out;
  size_t layers = 0;
  for (size_t l = 0; l < groups.size(); ++l) {
    const tg_layer_map& layer = maps.layers[l];
    if (layer.moe_ordinal < 0) continue;  // tables cover only layers with experts
    ++layers;
    PaceShape shape = ShapeOf(layer, groups[l], experts);
    const PaceStep* step = options_.table->Find(shape);
    if (step == nullptr) {
      const std::string missing = "the pace table (" + options_.table->name() + ") has no " +
                                  ToString(shape) + ", which layer " + std::to_string(l) + " is";
      if (nearest) step = options_.table->Nearest(shape, &shape);
      if (step == nullptr) {
        return Status{Code::kInvalid, missing + "; compile a table for this number of ranks"};
      }
      *told = missing + "; used instead: " + ToString(shape);
    }
    std::vector<std::vector<uint32_t>> ranks = RanksOf(groups[l]);
    const auto same = std::find_if(out.parts.begin(), out.parts.end(), [&](const auto& part) {
      return part.step == step && part.groups == ranks;
    });
    if (same != out.parts.end()) {
      same->share += 1;
    } else {
      out.parts.push_back({shape, step, std::move(ranks), 1});
    }
  }
  if (layers == 0) {
    return Status{Code::kInvalid, "no layer has experts: the pace table does not apply"};
  }
  for (PacedLayout::Part& part : out.parts) part.share /= static_cast<double>(layers);
  return out;
}

Pacer::Duration Pacer::Of(const PacedLayout& layout,
                          const std::vector<std::vector<PacedItem>>& homes, double imbalance,
                          uint64_t epoch, uint64_t step,
                          std::chrono::system_clock::time_point now) const {
  double seconds = 0;
  std::vector<PaceLoad> loads;
  for (const PacedLayout::Part& part : layout.parts) {
    loads.clear();
    for (const std::vector<uint32_t>& group : part.groups) {
      PaceLoad& load = loads.emplace_back();
      for (const uint32_t home : group) {
        if (home >= homes.size()) continue;
        for (const PacedItem& item : homes[home]) {
          if (item.count == 1) {
            ++load.decode;
            load.context += item.start + 1;
          } else {
            load.prefill += item.count;
            load.chunks += part.step->Chunk(item.start, uint64_t{item.start} + item.count);
          }
        }
      }
    }
    seconds += part.share * part.step->Seconds(loads, imbalance);
  }
  seconds *= options_.dilation * Noise(epoch, step) * Drift(now);
  const double most = std::chrono::duration<double>(options_.most).count();
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, most)));
}

// A factor of mean 1: the sum of four uniform numbers is close to normal.
double Pacer::Noise(uint64_t epoch, uint64_t step) const {
  if (options_.noise == 0) return 1;
  const uint64_t x = Mix(Mix(options_.seed ^ Mix(epoch)) ^ step);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(x >> (16 * i) & 0xffff) / 0xffff;
  return std::max(.1,
                  1 + options_.noise * (sum - 2) * std::numbers::sqrt3);  // its variance is 4/12
}

double Pacer::Drift(std::chrono::system_clock::time_point now) const {
  if (options_.drift == 0) return 1;
  const double at = std::chrono::duration<double>(now.time_since_epoch()).count() /
                    std::chrono::duration<double>(options_.drift_period).count();
  const double phase = static_cast<double>(Mix(options_.seed) >> 11) / (uint64_t{1} << 53);
  return 1 + options_.drift * std::sin(2 * std::numbers::pi * (at - std::floor(at) + phase));
}

}  // namespace tangram::engine
