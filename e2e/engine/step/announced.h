// What every home tells all others in a step's control exchange: what it computes, which blocks it
// freed, its load.
#pragma once

#include <vector>

#include "agent/engine/turn/control.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

// What a rank tells ahead of a flip, while an attempt is staged.
struct Filled {
  uint64_t attempt = 0;          // 0: none, and nothing to tell
  std::vector<uint32_t> blocks;  // of this home, full from now on: never written again
  // Of a home that gives its requests up: for each of these the rank of the target that it is
  // promised to. Else empty.
  std::vector<uint32_t> homes;
  std::vector<kv::Strip> strips;  // here, of blocks of any home
};

struct Announced {
  HomeFigures figures;
  Filled filled;
  std::vector<uint32_t> freed;  // after what was filled
  Batch batch;

  Bytes Encode() const;
  // kInternal: not such a message, or one whose batch no home could have: positions beyond its
  // blocks, more rows than a step takes.
  static Result<Announced> Decode(const Bytes& bytes, uint32_t block_tokens);
};

}  // namespace tangram::engine
