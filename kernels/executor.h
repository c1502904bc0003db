// Runs the body of a kernel on the host: the threads of a launch one after another.
#pragma once

#include "kernels/memory.h"
#include "kernels/parameters.h"

namespace tangram::kernels {

// Calls `body(where, memory)` for every thread.
template <typename Body, typename Memory>
void Execute(Launch launch, Memory& memory, Body&& body) {
  for (uint32_t block = 0; block < launch.blocks; ++block) {
    for (uint32_t thread = 0; thread < launch.threads; ++thread) {
      body(Where{block, launch.blocks, thread, launch.threads}, memory);
    }
  }
}

}  // namespace tangram::kernels
