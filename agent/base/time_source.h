// The clock of classes that wait: the steady clock in production, a fake one in tests
// (testing/fake_time.h), whose results then do not depend on the machine's speed.
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
