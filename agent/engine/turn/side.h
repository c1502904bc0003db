// One layout, as who carries KV needs it.
#pragma once

#include <string>
#include <vector>

#include "agent/kv/sides.h"

namespace tangram::engine {

struct Side {
  std::vector<kv::LayerGroups> groups;  // [layers]
  std::vector<std::string> members;     // [ranks]
  // Equal sides: who computes which heads of whom stays as it is, under the same ranks. Requests
  // stay at their homes then and every page where it is: there is nothing to plan.
  bool operator==(const Side&) const = default;
};

}  // namespace tangram::engine
