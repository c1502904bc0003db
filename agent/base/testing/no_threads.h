// A thread that cannot start another one, as at a pod's process limit. For tests.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <thread>

namespace tangram::testing {

// From now on a system call of this thread, and of threads that it starts, fails with `error` if
// its argument `argument` equals `value` in the bits of `mask`.
inline void FailCall(uint32_t call, int error, uint32_t argument = 0, uint32_t mask = 0,
                     uint32_t value = 0) {
  const auto offset = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
  std::array<sock_filter, 7> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{filter.size(), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::runtime_error("no seccomp filter");
  }
}

// Runs `work` in a thread that can start no other.
template <typename Work>
void WithoutThreads(Work&& work) {
  std::jthread([&] {
    FailCall(SYS_clone3, ENOSYS);  // the library tries the older one then
    FailCall(SYS_clone, EAGAIN);
    work();
  }).join();
}

}  // namespace tangram::testing
