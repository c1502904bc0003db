// The attention of one layout, as KV migration needs it.
#pragma once

#include <string>
#include <vector>

#include "agent/kv/sides.h"

namespace tangram::engine {

struct Side {
  std::vector<kv::LayerGroups> groups;  // [layers]
  std::vector<std::string> members;     // [ranks]
  // Equal sides: the same ranks compute the same heads. Then requests stay at their homes and every
  // page stays in place, so no plan is needed.
  bool operator==(const Side&) const = default;
};

}  // namespace tangram::engine
