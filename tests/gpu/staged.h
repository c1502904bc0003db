// The method of today's engines to reshard experts or KV: pack the data for each peer, an
// all-to-all between whole-layer buffers, and unpack. At its best on one GPU: each of the three
// passes runs at the speed of a copy, and none waits for the host.
#pragma once

#include <functional>
#include <vector>

#include "tests/gpu/timing.h"

namespace tangram::gpu {

// Buffers of every rank: [peer] parts of equal size.
class Exchange {
 public:
  Exchange(const Gpu& gpu, uint64_t ranks, uint64_t part_bytes);
  uint64_t ranks() const { return send_.size(); }
  uint64_t part_bytes() const { return part_bytes_; }
  uint64_t SendAt(uint64_t rank, uint64_t peer) const;
  uint64_t ReceivedAt(uint64_t rank, uint64_t peer) const;

  // Enqueues one exchange on a stream per rank: every rank packs, then copies its part of every
  // peer's buffer, starting with its neighbour, then unpacks.
  void Put(Stopwatch* watch, const std::function<void(uint64_t rank)>& pack,
           const std::function<void(uint64_t rank)>& unpack) const;

 private:
  const Gpu& gpu_;
  const uint64_t part_bytes_;
  Buffers send_, received_;
};

}  // namespace tangram::gpu
