// Looks every now and then whether the checkpoint can still be read: a repair may have to, and
// whoever relies on that wants to know before.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "agent/base/status.h"

namespace tangram {

class SourceWatch {
 public:
  // `check` is called in a thread of its own, so that only this thread hangs with a file system
  // that does. It owns what it uses: while it hangs it outlives this. `tell` gets its message,
  // empty when all is well; it is not called once this is gone. kUnavailable: no thread.
  static Result<std::unique_ptr<SourceWatch>> Start(std::function<Status()> check,
                                                    std::function<void(const std::string&)> tell,
                                                    std::chrono::milliseconds every);
  // Waits for a `check` under way for `kGrace` at most.
  ~SourceWatch();

  static constexpr std::chrono::milliseconds kGrace{1000};

 private:
  struct Shared;
  SourceWatch(std::function<Status()> check, std::function<void(const std::string&)> tell);
  static void Run(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds every);

  const std::shared_ptr<Shared> shared_;
  std::jthread thread_;
};

}  // namespace tangram
