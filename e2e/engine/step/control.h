// The control exchange that opens every step: gate word, what each home computes, which
// blocks it freed, its load.
#pragma once

#include <vector>

#include "agent/client/include/tangram/client.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

// Most rows of a home in one step (--max-batch-tokens goes as far).
constexpr uint64_t kMostRows = 65536;

struct Control {
  tg_word word{};
  bool pending = false;  // an attempt is under way here: do not slow down
  HomeFigures figures;
  std::vector<uint32_t> freed;
  Batch batch;

  Bytes Encode() const;
  // kInternal: not a control message, or one whose batch no home could have: positions beyond its
  // blocks, more rows than a step takes.
  static Result<Control> Decode(const Bytes& bytes, uint32_t block_tokens);
};

}  // namespace tangram::engine
