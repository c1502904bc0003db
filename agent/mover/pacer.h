// Leaves a declared share of the machine to others while bytes move.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

namespace tangram::mover {

// A worker says when it has moved something, and is held up so long that it was at work for no more
// than a share of its time. Priorities (agent/base/background.h) leave processors to serving; this
// leaves it links and memory, which have none. Thread-safe; workers are held up one by one.
class Pacer {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  struct Time {
    std::function<Nanoseconds()> now;  // steady
    std::function<void(Nanoseconds, const std::stop_token&)> sleep;
  };
  // So long a worker is at work without a rest, at least: who rests oftener is late by what waking
  // takes.
  static constexpr Nanoseconds kSlice = std::chrono::milliseconds(5);

  // Asked whenever a worker may be due. 1 or more holds nobody up; 0: it rests a slice, then asks
  // again. Called by any worker. None: nobody is ever held up.
  using Share = std::function<double()>;

  explicit Pacer(Share share) : Pacer(std::move(share), RealTime()) {}
  Pacer(Share share, Time time) : share_(std::move(share)), time_(std::move(time)) {}

  // The calling thread begins to work, or goes on after it had waited for work.
  void Begin();
  // It has moved something; sleeps if it is due. A stop ends that early.
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
