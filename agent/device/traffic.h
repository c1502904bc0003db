// What a GPU moves, and how well it coalesces, when units go from slab to slab: copies and hashes
// cut as CudaStream cuts them, kernels counted by their twins on the host (kernels/sectors.h).
// Nothing but arithmetic: no GPU is asked, and contents do not matter.
#pragma once

#include <cstdint>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "kernels/sectors.h"

namespace tangram::device {

// So many units, from from_first of a slab on, go to those from to_first of another.
struct UnitMove {
  uint64_t to_units = 0, to_first = 0;
  uint64_t from_units = 0, from_first = 0;
  uint64_t count = 0;
};

struct MoveTraffic {
  uint64_t ranges = 0, range_bytes = 0;  // that the copy engine takes
  kernels::Traffics strips;              // copy_strips: what is no range
  kernels::Traffics alone;               // copy_strips, were ranges left to it as well
  kernels::Traffics gather;              // copy_strips again: units brought together to be hashed
  kernels::Traffics sums, chain;         // hash_sums, hash_chain: each unit by itself
};

// Slabs begin at multiples of 256. `slab` says how units lie (its `units` are not read);
// `interleaved` false: unit after unit, as in a slab that is granule-major. The memory of both
// slabs is made for as long as this runs. kInvalid: units that no slab of this size has, with the
// numbers.
Result<MoveTraffic> CountMove(const UnitMove& move, const Shape& slab, bool interleaved);

}  // namespace tangram::device
