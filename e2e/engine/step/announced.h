// The report of every home in a step's control exchange: its batch, its freed blocks, its load.
#pragma once

#include <vector>

#include "agent/engine/turn/control.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

// A rank's report ahead of a flip, while an attempt is staged.
struct Filled {
  uint64_t attempt = 0;          // 0: none, and the rest is empty
  std::vector<uint32_t> blocks;  // of this home, full from now on: never written again
  // Of a home without requests in the target: for each of these blocks, the rank of the target that
  // it is promised to. Else empty.
  std::vector<uint32_t> homes;
  std::vector<kv::Strip> strips;  // on this rank, of blocks of any home
};

struct Announced {
  HomeFigures figures;
  Filled filled;
  std::vector<uint32_t> freed;  // applied after `filled`
  Batch batch;

  Bytes Encode() const;
  // kInternal: not such a message, or an impossible batch: positions beyond its blocks, or more
  // rows than a step takes.
  static Result<Announced> Decode(const Bytes& bytes, uint32_t block_tokens);
};

}  // namespace tangram::engine
