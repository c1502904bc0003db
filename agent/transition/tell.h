// How the machine is told what happened, and what it marks is done to the gates.
#pragma once

#include "agent/transition/core.h"

namespace tangram {

// What is to be done next, or the answer. All that is done at once is done, before anybody else
// tells anything. `seen` (may be null): the core's version then.
attempt::Later Tell(Core* core, const attempt::Event& event, uint64_t* seen = nullptr);

}  // namespace tangram
