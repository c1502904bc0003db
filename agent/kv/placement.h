// Which rank becomes the home of which request, and under which block ids.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "agent/base/status.h"
#include "agent/kv/plan.h"
#include "agent/kv/validate.h"

namespace tangram::kv {

// A block of an old home at its new owner.
struct PlacedBlock {
  uint32_t old_home = 0;
  uint32_t old_block = 0;
  uint32_t new_block = 0;
  uint32_t tokens = 0;  // most that a request of the new owner has filled
};

struct Placed {
  std::vector<Placement> requests;               // order of the input
  std::vector<std::vector<PlacedBlock>> blocks;  // [new ranks], by new_block
  std::vector<uint32_t> next_block;              // [new ranks]
  // (new rank, old home, old block) -> the new home that takes over the pages which the rank
  // already holds. Another new home in the same group needs copies.
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> owners;
  uint64_t moved = 0;  // requests whose home is another rank
};

// The input is valid. kNoMemory when a request has no place.
Result<Placed> PlaceRequests(const Input& input);

}  // namespace tangram::kv
