// Compiled tables of steps with a fixed duration.
#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "e2e/engine/pace/table.h"

namespace tangram::engine::testing {

// Milliseconds of a step by shape; the load of attention groups has no cost.
inline std::shared_ptr<const PaceTable> FixedTable(const std::map<PaceShape, double>& shapes) {
  const std::vector<double> nothing(193, 0), little(2, 1e-9);
  nlohmann::json table = {{"format", "tangram-pace-1"},
                          {"model", "fixed"},
                          {"engine", "test"},
                          {"routing", "none"},
                          {"layers", 1},
                          {"points_per_octave", 8},
                          {"attention", nlohmann::json::array()},
                          {"shapes", nlohmann::json::array()}};
  std::map<uint32_t, bool> groups;
  for (const auto& [shape, ms] : shapes) {
    if (!std::exchange(groups[shape.attention_group], true)) {
      table["attention"].push_back({{"ranks", shape.attention_group},
                                    {"dense", nothing},
                                    {"context", nothing},
                                    {"generation", {little, little}}});
    }
    table["shapes"].push_back({{"ranks", shape.ranks},
                               {"expert_group", shape.expert_group},
                               {"attention_group", shape.attention_group},
                               {"moe", std::vector<double>(193, ms * 1000)},
                               {"around", nothing}});
  }
  Result<PaceTable> parsed = PaceTable::Parse(table.dump());
  return parsed.ok() ? std::make_shared<const PaceTable>(std::move(*parsed)) : nullptr;
}

}  // namespace tangram::engine::testing
