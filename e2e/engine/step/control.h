// The control exchange that opens every step: gate word, what each home computes, which
// blocks it freed, its load.
#pragma once

#include <vector>

#include "agent/client/include/tangram/client.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/step/batch.h"

namespace tangram::engine {

struct Control {
  tg_word word{};
  bool pending = false;  // an attempt is under way here: do not slow down
  HomeFigures figures;
  std::vector<uint32_t> freed;
  Batch batch;

  Bytes Encode() const;
  static Result<Control> Decode(const Bytes& bytes);
};

}  // namespace tangram::engine
