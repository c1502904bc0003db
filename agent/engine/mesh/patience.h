// The timeout for peers, learned from exchanges. Pure: time comes from the caller.
//
// A rank that is cut off, unresponsive or without power closes no connection, so only a timeout
// detects it. The timeout is learned from how long exchanges of as much work took here. Waiting
// ranks send heartbeats, so only the rank that all others wait for times out.
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

// Learns one timeout per size of a step. One thread.
class Patience {
 public:
  using Duration = std::chrono::nanoseconds;

  struct Bounds {
    std::chrono::milliseconds least = limits::kMinSilence;  // minimum, whatever was learned
    std::chrono::milliseconds most = limits::kMaxSilence;   // maximum; also the initial timeout
    double factor = 8;                                      // times the quantile .99
    uint32_t samples = 64;                                  // per size, before its estimate is used
    // The minimum for an unknown size once others are known, in units of `least`.
    int rare = limits::kUnseenFactor;
    // The same for work that no size describes, once steps were measured.
    int other = limits::kFlipFactor;

    // The interval between two heartbeats of a waiting rank.
    std::chrono::milliseconds heartbeat() const { return least / limits::kHeartbeats; }
  };

  explicit Patience(Bounds bounds) : bounds_(bounds) {}

  const Bounds& bounds() const { return bounds_; }
  // An exchange of a step of this many rows completed after `took`.
  void Learn(uint64_t rows, Duration took);
  // The timeout for a step of this many rows. For an unknown size the nearest known sizes decide:
  // at most that of the larger one, and at most that of the smaller one times the ratio of rows.
  // nullopt: work that no size describes (it maps and copies). Its timeout follows the longest of
  // all sizes.
  Duration Limit(std::optional<uint64_t> rows) const;

 private:
  struct Histogram;
  // `factor` times the quantile, at most `most`; nullopt: too few samples.
  std::optional<Duration> Learned(const Histogram& of, double factor) const;
  // The same for a size with too few samples, from its neighbours.
  std::optional<Duration> Guessed(size_t size) const;

  // Durations by quarters of an octave, from 2^10 ns (1 us). The counts decay, so that old
  // durations lose weight.
  static constexpr size_t kBins = 112;
  static constexpr uint32_t kKept = 4096;
  struct Histogram {
    std::array<uint32_t, kBins> bins{};
    uint32_t total = 0;
  };
  static constexpr size_t kSizes = 33;  // by the number of bits of the rows

  Bounds bounds_;
  std::array<Histogram, kSizes> sizes_{};
};

}  // namespace tangram::engine
