// Work that must not cost the engines a step.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tangram {

// The calling thread takes processor time that serving leaves, from now on. (Linux gives
// each thread its own nice value.) A transition then stages a little longer on a busy
// machine, and no token is late for it.
inline void YieldToServing() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
}

}  // namespace tangram
