#include "e2e/engine/pace/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tangram::engine {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "tangram-pace-1";
constexpr int kOctaveBits = 3;
constexpr size_t kPerOctave = 1 << kOctaveBits;
constexpr size_t kOctaves = 24;  // to 2^24 tokens
constexpr size_t kGridSize = kOctaves * kPerOctave + 1;

double SizeAt(size_t point) {
  return std::ldexp(1 + static_cast<double>(point % kPerOctave) / kPerOctave,
                    static_cast<int>(point / kPerOctave));
}

// The grid point at or below n, and the fraction of the way to the next one. Beyond the grid: the
// last place.
std::pair<size_t, double> Place(uint64_t n) {
  const auto octave = static_cast<size_t>(std::bit_width(n) - 1);
  if (octave >= kOctaves) return {kGridSize - 2, 1};
  const uint64_t within = n << (32 - octave) & 0xffffffffu;
  constexpr int kRest = 32 - kOctaveBits;
  return {octave * kPerOctave + static_cast<size_t>(within >> kRest),
          static_cast<double>(within & ((uint64_t{1} << kRest) - 1)) / (uint64_t{1} << kRest)};
}

// 0 if there is no work.
double At(const PaceGrid& grid, uint64_t n) {
  if (n == 0) return 0;
  const auto [i, rest] = Place(n);
  return grid[i] + (grid[i + 1] - grid[i]) * rest;
}

Status Wrong(const std::string& what) { return {Code::kInvalid, "pace table: " + what}; }

// `points`: the size of a full grid; 0: any size up to the maximum, continued in proportion.
Result<PaceGrid> ReadGrid(const json& in, const std::string& where, size_t points, double least) {
  if (!in.is_array()) return Wrong(where + " is no array");
  if (in.size() < 2 || in.size() > kGridSize || (points != 0 && in.size() != points)) {
    return Wrong(where + " has " + std::to_string(in.size()) + " points, want " +
                 std::to_string(points == 0 ? kGridSize : points));
  }
  PaceGrid out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].is_number() || !(in[i].get<double>() >= least) ||
        !std::isfinite(in[i].get<double>())) {
      return Wrong(where + ": " + in[i].dump() + " at point " + std::to_string(i) + " is no time");
    }
    out.push_back(in[i].get<double>() * 1e-6);
  }
  const size_t last = out.size() - 1;
  for (size_t i = out.size(); i < kGridSize; ++i) {
    out.push_back(out[last] * (SizeAt(i) / SizeAt(last)));
  }
  return out;
}

Result<uint32_t> ReadCount(const json& in, const char* field, const std::string& where) {
  const auto it = in.is_object() ? in.find(field) : in.end();
  constexpr uint64_t kMost = 1 << 16;
  if (!in.is_object() || it == in.end() || !it->is_number_unsigned() || it->get<uint64_t>() == 0 ||
      it->get<uint64_t>() > kMost) {
    return Wrong(where + ": " + field + " is not a number of 1 to " + std::to_string(kMost));
  }
  return it->get<uint32_t>();
}

const json& Field(const json& in, const char* field) {
  static const json kNone;
  const auto it = in.is_object() ? in.find(field) : in.end();
  return in.is_object() && it != in.end() ? *it : kNone;
}

}  // namespace

std::string ToString(const PaceShape& shape) {
  return "g=" + std::to_string(shape.expert_group) + ",t=" + std::to_string(shape.attention_group) +
         " on " + std::to_string(shape.ranks) + " ranks";
}

double PaceStep::Chunk(uint64_t from, uint64_t to) const {
  const PaceGrid& context = group_->context;
  return layers_ * std::max(At(context, to) - At(context, from), At(context, to - from));
}

double PaceStep::Decode(uint64_t requests, uint64_t context) const {
  const auto [i, rest] = Place(requests);
  context = std::max<uint64_t>(context, 1);
  const double low = At(group_->generation[i], context);
  const double high = At(group_->generation[i + 1], context);
  return low + (high - low) * rest;
}

double PaceStep::Own(const PaceLoad& load) const {
  double seconds = At(group_->dense, load.decode + load.prefill) * layers_ + load.chunks;
  if (load.decode > 0) seconds += Decode(load.decode, load.context / load.decode) * layers_;
  return seconds;
}

double PaceStep::Seconds(std::span<const PaceLoad> loads, double imbalance) const {
  double slowest = 0;
  uint64_t tokens = 0;
  for (const PaceLoad& load : loads) {
    const uint64_t n = load.decode + load.prefill;
    if (n == 0) continue;
    tokens += n;
    slowest = std::max(slowest, Own(load));
  }
  if (tokens == 0) return 0;
  uint64_t executed = tokens;
  if (shape_.expert_group < shape_.ranks) {
    executed = static_cast<uint64_t>(std::llround(static_cast<double>(tokens) * imbalance));
  }
  return slowest + layers_ * (At(moe_, executed) + At(around_, tokens));
}

Result<PaceTable> PaceTable::Open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file.good()) return Wrong("cannot read \"" + path + "\"");
  Result<PaceTable> table = Parse(text.str());
  if (!table.ok()) return Status{table.status().code(), path + ": " + table.status().message()};
  return table;
}

Result<PaceTable> PaceTable::Parse(const std::string& text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object()) return Wrong("it is no JSON object");
  if (Field(in, "format") != kFormat || Field(in, "points_per_octave") != kPerOctave) {
    return Wrong("format " + Field(in, "format").dump() + " with " +
                 Field(in, "points_per_octave").dump() +
                 " points in an octave; this engine reads \"" + kFormat + "\" with " +
                 std::to_string(kPerOctave));
  }
  PaceTable out;
  for (const char* field : {"model", "engine", "routing"}) {
    if (!Field(in, field).is_string()) return Wrong(std::string(field) + " is no string");
    out.name_ += (out.name_.empty() ? "" : ", ") + Field(in, field).get<std::string>();
  }
  const Result<uint32_t> layers = ReadCount(in, "layers", "it");
  if (!layers.ok()) return layers.status();

  std::map<uint32_t, std::shared_ptr<const PaceStep::Group>> groups;
  for (const json& item : Field(in, "attention")) {
    const Result<uint32_t> ranks = ReadCount(item, "ranks", "attention");
    if (!ranks.ok()) return ranks.status();
    const std::string where = "attention of " + std::to_string(*ranks) + " ranks: ";
    PaceStep::Group group;
    for (const auto& [field, to] :
         {std::pair<const char*, PaceGrid*>{"dense", &group.dense}, {"context", &group.context}}) {
      Result<PaceGrid> grid = ReadGrid(Field(item, field), where + field, kGridSize, 0);
      if (!grid.ok()) return grid.status();
      *to = std::move(*grid);
    }
    const json& rows = Field(item, "generation");
    if (!rows.is_array() || rows.size() < 2 || rows.size() > kGridSize) {
      return Wrong(where + "generation has " + std::to_string(rows.size()) + " grids, of 2 to " +
                   std::to_string(kGridSize));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      Result<PaceGrid> row =
          ReadGrid(rows[i], where + "generation " + std::to_string(i), i == 0 ? 0 : rows[0].size(),
                   std::numeric_limits<double>::denorm_min());
      if (!row.ok()) return row.status();
      group.generation.push_back(std::move(*row));
    }
    const size_t last = rows.size() - 1;
    for (size_t i = rows.size(); i < kGridSize; ++i) {
      PaceGrid row = group.generation[last];
      for (double& value : row) value *= SizeAt(i) / SizeAt(last);
      group.generation.push_back(std::move(row));
    }
    if (!groups.emplace(*ranks, std::make_shared<PaceStep::Group>(std::move(group))).second) {
      return Wrong(where + "listed twice");
    }
  }
  for (const json& item : Field(in, "shapes")) {
    PaceShape shape;
    for (const auto& [field, to] : {std::pair<const char*, uint32_t*>{"ranks", &shape.ranks},
                                    {"expert_group", &shape.expert_group},
                                    {"attention_group", &shape.attention_group}}) {
      const Result<uint32_t> count = ReadCount(item, field, "shapes");
      if (!count.ok()) return count.status();
      *to = *count;
    }
    if (shape.ranks % shape.expert_group != 0 || shape.ranks % shape.attention_group != 0) {
      return Wrong(ToString(shape) + ": groups must divide the ranks");
    }
    PaceStep step;
    step.shape_ = shape;
    step.layers_ = *layers;
    for (const auto& [field, to] :
         {std::pair<const char*, PaceGrid*>{"moe", &step.moe_}, {"around", &step.around_}}) {
      Result<PaceGrid> grid =
          ReadGrid(Field(item, field), ToString(shape) + ": " + field, kGridSize, 0);
      if (!grid.ok()) return grid.status();
      *to = std::move(*grid);
    }
    const auto group = groups.find(shape.attention_group);
    if (group == groups.end()) {
      return Wrong(ToString(shape) + ": there is no attention of as many ranks");
    }
    step.group_ = group->second;
    if (!out.steps_.emplace(shape, std::move(step)).second) {
      return Wrong(ToString(shape) + " is listed twice");
    }
  }
  if (out.steps_.empty()) return Wrong("it has no shapes");
  return out;
}

const PaceStep* PaceTable::Find(const PaceShape& shape) const {
  const auto it = steps_.find(shape);
  return it == steps_.end() ? nullptr : &it->second;
}

const PaceStep* PaceTable::Nearest(const PaceShape& shape, PaceShape* is) const {
  const auto apart = [](uint32_t a, uint32_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  const PaceStep* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [at, step] : steps_) {
    if (at.ranks != shape.ranks) continue;
    const double distance = apart(at.expert_group, shape.expert_group) +
                            apart(at.attention_group, shape.attention_group);
    if (distance >= least) continue;
    least = distance;
    best = &step;
    *is = at;
  }
  return best;
}

}  // namespace tangram::engine
