// What every home tells all others in a step's control exchange: what it computes, which blocks it
// freed, its load.
#pragma once

#include <vector>

#include "agent/engine/turn/control.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

struct Announced {
  HomeFigures figures;
  std::vector<uint32_t> freed;
  Batch batch;

  Bytes Encode() const;
  // kInternal: not such a message, or one whose batch no home could have: positions beyond its
  // blocks, more rows than a step takes.
  static Result<Announced> Decode(const Bytes& bytes, uint32_t block_tokens);
};

}  // namespace tangram::engine
