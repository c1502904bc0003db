#include "agent/base/time_source.h"

namespace tangram {
namespace {

class Steady final : public TimeSource {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  int Poll(pollfd* fds, nfds_t count, int timeout_ms) override {
    return poll(fds, count, timeout_ms);
  }
};

}  // namespace

TimeSource& SteadyTime() {
  static Steady steady;
  return steady;
}

}  // namespace tangram
