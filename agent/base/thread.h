// Threads that may not start: a limit on processes (pids of a pod) makes std::jthread throw, and
// an exception that is not caught ends the process.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "agent/base/status.h"

namespace tangram {

// Runs `work` in a thread of its own. kUnavailable: there is none to be had now.
template <typename Work>
Result<std::jthread> StartThread(Work&& work) {
  try {
    return std::jthread(std::forward<Work>(work));
  } catch (const std::system_error& e) {
    return Status{Code::kUnavailable, std::string("cannot start a thread (") + e.what() +
                                          "); check the limit of processes (pids)"};
  }
}

}  // namespace tangram
