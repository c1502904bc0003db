// Thread starts that may fail. At a process limit (pids of a pod) std::jthread throws, and an
// uncaught exception ends the process.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "agent/base/status.h"

namespace tangram {

// Runs `work` in a new thread. kUnavailable: no thread can be started now.
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
