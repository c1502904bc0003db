// Looks every now and then whether the checkpoint can still be read: a repair may have to, and
// whoever relies on that wants to know before.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "agent/base/status.h"

namespace tangram {

class SourceWatch {
 public:
  // `check` is called in a thread of its own, so that only this thread hangs with a file system
  // that does; `tell` gets its message, empty when all is well. Both outlive this.
  SourceWatch(std::function<Status()> check, std::function<void(const std::string&)> tell,
              std::chrono::milliseconds every);

 private:
  std::jthread thread_;
};

}  // namespace tangram
