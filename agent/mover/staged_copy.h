// What engines do where matrices lie as in the checkpoint and nobody moves them for them: an
// expert's shards are packed into a buffer, the buffer goes to the other rank, and is unpacked into
// the matrices there. The peer of `make bench NAME=reshard`, row-major.
#pragma once

#include <cstdint>

#include "agent/device/memory.h"

namespace tangram::mover {

// Experts of bf16 that are cut over `ranks`.
struct StagedShape {
  uint64_t hidden = 0, inner = 0, ranks = 0;
  uint64_t expert_bytes() const { return 3 * hidden * inner * 2; }
};

// Bytes that a rank keeps of the experts that lie whole, one after another, in `from`: its shard of
// each.
uint64_t ShardBytes(const StagedShape& shape, const device::Memory& from);
// Brings the shards `rank` of all experts in `from` into slabs of their own in `to`, by way of two
// buffers of as many bytes as the shards of `at_once` experts (0: all), with `threads`; every shard
// is hashed on the way. Seconds.
double StagedCopy(const StagedShape& shape, uint64_t rank, const device::Memory& from,
                  const device::Memory& to, uint64_t at_once, unsigned threads);

}  // namespace tangram::mover
