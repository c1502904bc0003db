// The clock of a class that waits: the steady clock in the product, a fake one in tests
// (testing/fake_time.h), which then do not depend on how fast the machine is.
#pragma once

#include <poll.h>

#include <chrono>

namespace tangram {

// Thread-safe.
class TimeSource {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~TimeSource() = default;
  virtual TimePoint Now() const = 0;
  // As poll(2), with a timeout in the time of this clock.
  virtual int Poll(pollfd* fds, nfds_t count, int timeout_ms) = 0;
};

// std::chrono::steady_clock and poll(2).
TimeSource& SteadyTime();

}  // namespace tangram
