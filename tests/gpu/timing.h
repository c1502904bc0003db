// Time on the GPU, by its own clock.
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

// Of values, at least one; `share` 0.5 is the median, by rank.
double Quantile(std::vector<double> values, double share);

// Takes the time of work on streams that run at once. A gate is shut in front of them while they
// are filled, so that what is measured is the GPU's work and not how fast it is given any: the
// method of nvbandwidth, with a call of the host in place of its spinning kernel.
class Stopwatch {
 public:
  Stopwatch(const Gpu& gpu, size_t streams);
  size_t streams() const { return streams_.size(); }
  CUstream stream(size_t number) const { return *streams_[number]; }

  // Every stream waits for what all were given until now.
  void Meet();
  // Seconds from when all streams may begin to the end of the last, of what `fill` puts on them:
  // the median of `rounds`, after one that is not counted.
  double Seconds(int rounds, const std::function<void()>& fill);
  // Rounds in which the gate opened by itself, before all was given: more was given than the
  // driver takes at once, and that round tells of the host, too.
  int hurried() const { return hurried_; }
  // That, for people; empty: none.
  std::string Note() const;

 private:
  // A stream that comes here waits; if nobody opens, half a second at most.
  class Gate {
   public:
    void Shut();
    void Open();
    // False: it opened by itself.
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

// Microseconds that a call of the host takes.
double HostMicroseconds(const std::function<void()>& work);

}  // namespace tangram::gpu
