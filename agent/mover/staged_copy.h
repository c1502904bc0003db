// The usual method of engines whose matrices are stored as in the checkpoint: an expert's shards
// are packed into a buffer, the buffer is sent to the other rank, and is unpacked into the matrices
// there. The comparison of `make bench NAME=reshard`, row-major.
#pragma once

#include <cstdint>

#include "agent/device/memory.h"

namespace tangram::mover {

// Experts of bf16 that are cut over `ranks`.
struct StagedShape {
  uint64_t hidden = 0, inner = 0, ranks = 0;
  uint64_t expert_bytes() const { return 3 * hidden * inner * 2; }
};

// A rank's bytes of the whole experts in `from`, which follow one another: its shard of each.
uint64_t ShardBytes(const StagedShape& shape, const device::Memory& from);
// Copies the shards `rank` of all experts in `from` into separate slabs in `to`, by way of two
// buffers. Each has the bytes of the shards of `at_once` experts (0: all). Uses `threads`, and
// hashes every shard on the way. Returns seconds.
double StagedCopy(const StagedShape& shape, uint64_t rank, const device::Memory& from,
                  const device::Memory& to, uint64_t at_once, unsigned threads);

}  // namespace tangram::mover
