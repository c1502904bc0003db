// Checks periodically whether the checkpoint is still readable: a repair may need it, so users must
// learn early that it is not.
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
  // `check` runs in a separate thread, so that a blocked file system blocks only this thread. It
  // owns its data, because it outlives this object while it is blocked. `tell` gets its error
  // message (empty: ok), and is not called after this object's end. kUnavailable: no thread.
  static Result<std::unique_ptr<SourceWatch>> Start(std::function<Status()> check,
                                                    std::function<void(const std::string&)> tell,
                                                    std::chrono::milliseconds every);
  // Waits for a running `check` for `kGrace` at most.
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
