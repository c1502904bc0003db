// Silence of peers, measured in the time that this process ran. Pure: the caller passes the time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "agent/base/limits.h"

namespace tangram {

// One wait for several peers. Time in which this process did not run (a paused machine, busy cores)
// does not count against them.
class Wait {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;
  // The caller must call Look at least this often. At most kCounts between two calls counts.
  static constexpr std::chrono::milliseconds kLook = limits::kSlice, kCounts{100};

  // The waiting rank sends a heartbeat every `beat`.
  Wait(size_t peers, Duration limit, Duration beat, Clock::time_point now)
      : limit_(limit), beat_(beat), last_(now), heard_(peers) {}

  // To be called whenever this process runs.
  void Look(Clock::time_point now) {
    ran_ += std::clamp<Duration>(now - last_, Duration(0), kCounts);
    last_ = now;
  }
  // Bytes arrived from the peer, or were sent to it.
  void Heard(size_t peer) { heard_[peer] = ran_; }
  bool Silent(size_t peer) const { return ran_ - heard_[peer] >= limit_; }
  // Whether a heartbeat to the peers is due. True once per period.
  bool BeatDue() {
    if (ran_ - beaten_ < beat_) return false;
    beaten_ = ran_;
    return true;
  }
  // Counted time so far.
  Duration ran() const { return ran_; }
  Duration limit() const { return limit_; }

 private:
  Duration limit_, beat_;
  Clock::time_point last_;
  Duration ran_{0}, beaten_{0};
  std::vector<Duration> heard_;
};

}  // namespace tangram
