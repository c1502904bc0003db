// Leaves a configured share of the machine to others while bytes move.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

namespace tangram::mover {

// A worker reports each move, and is paused so that it works for at most a share of its time.
// Priorities (agent/base/background.h) leave processors to serving; this leaves it links and
// memory, which have no priorities. Thread-safe; workers are paused one by one.
class Pacer {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  struct Time {
    std::function<Nanoseconds()> now;  // monotonic
    std::function<void(Nanoseconds, const std::stop_token&)> sleep;
  };
  // A worker works at least this long without a rest: with more rests the wake-up latency would add
  // up.
  static constexpr Nanoseconds kSlice = std::chrono::milliseconds(5);

  // Called by any worker that may be due. 1 or more: no pause. 0: it rests a slice, then calls
  // again. None: no worker is ever paused.
  using Share = std::function<double()>;

  explicit Pacer(Share share) : Pacer(std::move(share), RealTime()) {}
  Pacer(Share share, Time time) : share_(std::move(share)), time_(std::move(time)) {}

  // The calling thread begins to work, or continues after it has waited for work.
  void Begin();
  // The thread has moved bytes; it sleeps if it is due. A stop ends that early.
  void Moved(const std::stop_token& stop);

 private:
  static Time RealTime();

  const Share share_;
  const Time time_;
  std::mutex mu_;
  struct Worker {
    Nanoseconds worked{0};  // since its last rest, up to `since`
    Nanoseconds since{0};
  };
  std::map<std::thread::id, Worker> workers_;
};

}  // namespace tangram::mover
