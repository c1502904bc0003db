// Priorities for work that must not delay engine steps.
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

// From now on, the calling thread uses only processor time that serving leaves. (On Linux, each
// thread has its own nice value.) On a busy machine staging then takes a little longer, and no
// token is late.
inline void YieldToServing() { detail::Nice(19); }

// Gives the agent lower priority than its machine's engines. Called first in main, so that every
// thread inherits it. Work that engines wait for is not delayed, because engines idle then.
inline void StandBehindEngines() { detail::Nice(5); }

}  // namespace tangram
