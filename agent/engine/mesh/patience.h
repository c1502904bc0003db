// How long a peer may be silent before the step is given up. Pure: time comes from the caller.
//
// A rank that is cut off, that hangs or has lost power closes no connection, so only silence
// tells. The limit is learned from how long exchanges of as much work took here; who waits
// tells so (a beat), so that only the rank that everybody waits for falls silent.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/base/limits.h"
#include "agent/base/wait.h"

namespace tangram::engine {

// Learns one limit per size of a step. One thread.
class Patience {
 public:
  using Duration = std::chrono::nanoseconds;

  struct Bounds {
    std::chrono::milliseconds least = limits::kMinSilence;  // whatever was learned
    std::chrono::milliseconds most = limits::kMaxSilence;   // until anything is learned
    double factor = 8;                                      // of the quantile .99
    uint32_t samples = 64;                                  // of a size, before they count
    // Times the least, at least: a size that is not known, once others are.
    int rare = limits::kUnseenFactor;
    // ... and work that is like no other, once steps were seen.
    int other = limits::kFlipFactor;

    // Between two heartbeats of a rank that waits.
    std::chrono::milliseconds heartbeat() const { return least / limits::kHeartbeats; }
  };

  explicit Patience(Bounds bounds) : bounds_(bounds) {}

  const Bounds& bounds() const { return bounds_; }
  // An exchange of a step of so many rows was over after `took`.
  void Learn(uint64_t rows, Duration took);
  // Of a step of so many rows. A size that is not known yet is judged by the nearest that are: no
  // longer than a step of more rows, and longer than one of fewer by no more than it has more rows.
  // nullopt: work that is like no other, which maps and copies. How
  // slow this machine is, steps of all sizes tell.
  Duration Limit(std::optional<uint64_t> rows) const;

 private:
  struct Histogram;
  // `factor` times the quantile, and no more than the most; nullopt: too little is known.
  std::optional<Duration> Learned(const Histogram& of, double factor) const;
  // The same for a size of which too little is known, from its neighbours.
  std::optional<Duration> Guessed(size_t size) const;

  // Durations by quarters of an octave, from 2^10 ns (1 us); decays, so that what was long ago
  // is forgotten.
  static constexpr size_t kBins = 112;
  static constexpr uint32_t kKept = 4096;
  struct Histogram {
    std::array<uint32_t, kBins> bins{};
    uint32_t total = 0;
  };
  static constexpr size_t kSizes = 33;  // by the binary order of the rows

  Bounds bounds_;
  std::array<Histogram, kSizes> sizes_{};
};

}  // namespace tangram::engine
