// Time by the GPU's clock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"

namespace tangram::gpu {

// Quantile of at least one value; `share` 0.5 is the median, by rank.
double Quantile(std::vector<double> values, double share);

// Times work on concurrent streams. A gate holds the streams while they are filled, so that the
// time is the GPU's work and not the rate of launches: the method of nvbandwidth, with a host
// callback instead of its spinning kernel.
class Stopwatch {
 public:
  Stopwatch(const Gpu& gpu, size_t streams);
  size_t streams() const { return streams_.size(); }
  CUstream stream(size_t number) const { return *streams_[number]; }

  // Every stream waits for all work enqueued so far.
  void Meet();
  // Seconds from the opening of the gate to the end of the last stream, for the work that `fill`
  // enqueues: the median of `rounds`, after one that does not count.
  double Seconds(int rounds, const std::function<void()>& fill);
  // Rounds in which the gate opened early, before everything was enqueued, because the driver's
  // queue was full. Such a round also measures the host.
  int hurried() const { return hurried_; }
  // A note about these rounds; empty: none.
  std::string Note() const;

 private:
  // Holds the streams that reach it until Open, at most half a second.
  class Gate {
   public:
    void Shut();
    void Open();
    // False: the time limit opened it.
    bool opened();
    static void Pass(void* gate);

   private:
    std::mutex mu_;
    std::condition_variable changed_;
    bool open_ = true, late_ = false;
  };

  double Once(const std::function<void()>& fill);

  const Gpu& gpu_;
  Gate gate_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> met_;
  const Event begin_, end_;
  int hurried_ = 0;
};

// Microseconds of a host call.
double HostMicroseconds(const std::function<void()>& work);

}  // namespace tangram::gpu
