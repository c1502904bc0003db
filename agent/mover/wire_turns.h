// The two turns of a process (wire_order.h), and the timeouts of its ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "agent/base/limits.h"
#include "agent/base/time_source.h"

namespace tangram::mover {

// A lock with one holder at a time.
class Turn {
 public:
  // Waits for at most `most`; false: it is still held.
  bool TakeWithin(std::chrono::milliseconds most) {
    std::unique_lock lock(mu_);
    if (!free_.wait_for(lock, most, [&] { return !taken_; })) return false;
    return taken_ = true;
  }
  void Give() {
    {
      const std::scoped_lock lock(mu_);
      taken_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mu_;
  std::condition_variable free_;
  bool taken_ = false;
};

struct Turns {
  Turn receives, sends;
};

struct WirePatience {
  std::chrono::milliseconds connect{20'000};         // NCCL selects a path in this time
  std::chrono::milliseconds turn{30'000};            // for a turn, here or at the source
  std::chrono::milliseconds bytes{10'000};           // for a buffer that both ends have posted
  std::chrono::milliseconds kv{limits::kKvSilence};  // the same for KV, for which a flip waits
  TimeSource* time = &SteadyTime();                  // the clock of these limits
};

}  // namespace tangram::mover
