// How long others were silent, by the time that this process ran. Pure: time comes from the caller.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "agent/base/limits.h"

namespace tangram {

// One wait for several peers. What this process slept through (a machine that stood still, cores
// that others had) does not count against them.
class Wait {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;
  // The caller looks at least that often; of the time between two looks no more than kCounts
  // counts.
  static constexpr std::chrono::milliseconds kLook = limits::kSlice, kCounts{100};

  // Who waits tells so every `beat`.
  Wait(size_t peers, Duration limit, Duration beat, Clock::time_point now)
      : limit_(limit), beat_(beat), last_(now), heard_(peers) {}

  // This process runs.
  void Look(Clock::time_point now) {
    ran_ += std::clamp<Duration>(now - last_, Duration(0), kCounts);
    last_ = now;
  }
  // Bytes came from the peer, or went to it.
  void Heard(size_t peer) { heard_[peer] = ran_; }
  bool Silent(size_t peer) const { return ran_ - heard_[peer] >= limit_; }
  // Is it time to tell the peers that this rank waits? Once per period.
  bool BeatDue() {
    if (ran_ - beaten_ < beat_) return false;
    beaten_ = ran_;
    return true;
  }
  // Time that counted so far.
  Duration ran() const { return ran_; }
  Duration limit() const { return limit_; }

 private:
  Duration limit_, beat_;
  Clock::time_point last_;
  Duration ran_{0}, beaten_{0};
  std::vector<Duration> heard_;
};

}  // namespace tangram
