// The bytes that a GPU moves, and how well it coalesces, when units move between slabs. Copies and
// hashes are cut as in CudaStream; kernels are counted by their twins on the host
// (kernels/sectors.h). Pure arithmetic: uses no GPU, and contents do not matter.
#pragma once

#include <cstdint>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "kernels/sectors.h"

namespace tangram::device {

// Moves units from from_first of a slab on to those from to_first of another.
struct UnitMove {
  uint64_t to_units = 0, to_first = 0;
  uint64_t from_units = 0, from_first = 0;
  uint64_t count = 0;
};

struct MoveTraffic {
  uint64_t ranges = 0, range_bytes = 0;  // for the copy engine
  kernels::Traffics strips;              // copy_strips: all that is not a range
  kernels::Traffics alone;               // copy_strips if it copied the ranges too
  kernels::Traffics gather;              // copy_strips for gathering units to hash
  kernels::Traffics sums, chain;         // hash_sums, hash_chain: each unit separately
};

// Slabs begin at multiples of 256. `slab` is the shape of units (its `units` are not read).
// `interleaved` false: unit after unit, as in a granule-major slab. Allocates both slabs while it
// runs. kInvalid: units that no slab of this size has, with the numbers.
Result<MoveTraffic> CountMove(const UnitMove& move, const Shape& slab, bool interleaved);

}  // namespace tangram::device
