// Work that must not cost the engines a step.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tangram {
namespace detail {
inline void Nice(int value) {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), value);
}
}  // namespace detail

// The calling thread takes processor time that serving leaves, from now on. (Linux gives
// each thread its own nice value.) A transition then stages a little longer on a busy
// machine, and no token is late for it.
inline void YieldToServing() { detail::Nice(19); }

// A whole agent steps behind the engines of its machine: called first in main, so that every
// thread inherits it. What the engines wait for still comes at once, since they wait.
inline void StandBehindEngines() { detail::Nice(5); }

}  // namespace tangram
