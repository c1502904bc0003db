// Passes events to the machine and applies its immediate effects.
#pragma once

#include "agent/transition/core.h"

namespace tangram {

// Returns the reply or the action that takes time. All immediate effects are applied before another
// event. `seen` (may be null) receives the core's version after them.
attempt::Later Tell(Core* core, const attempt::Event& event, uint64_t* seen = nullptr);

}  // namespace tangram
