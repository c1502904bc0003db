// A clock for tests that does not advance while a thread computes. It advances to the earliest
// timeout when all participating threads wait in Poll and no bytes are in transit between them. So
// a test sees the same times on every machine.
#pragma once

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <vector>

#include "agent/base/time_source.h"

namespace tangram::testing {

class FakeTime final : public TimeSource {
 public:
  using Duration = std::chrono::nanoseconds;

  // The constructing thread participates.
  FakeTime() = default;

  TimePoint Now() const override {
    const std::scoped_lock lock(mu_);
    return now_;
  }
  int Poll(pollfd* fds, nfds_t count, int timeout_ms) override {
    std::unique_lock lock(mu_);
    ++polls_;
    const Waiter self{
        {fds, fds + count},
        timeout_ms < 0 ? TimePoint::max() : now_ + std::chrono::milliseconds(timeout_ms)};
    waiters_.push_back(&self);
    int ready = 0;
    while ((ready = poll(fds, count, 0)) == 0 && now_ < self.until) {
      const TimePoint first = (*std::ranges::min_element(waiters_, {}, [](const Waiter* w) {
                                return w->until;
                              }))->until;
      if (waiters_.size() == threads_ && first != TimePoint::max() && NothingOnItsWay()) {
        lock.unlock();
        const bool moved = idle && idle();
        lock.lock();
        if (!moved) now_ = std::max(now_, first);
        changed_.notify_all();
      } else {
        changed_.wait_for(lock, std::chrono::milliseconds(1));
      }
    }
    std::erase(waiters_, &self);
    return ready;
  }

  void Advance(Duration by) {
    const std::scoped_lock lock(mu_);
    now_ += by;
    changed_.notify_all();
  }
  // Adds a thread; called before it starts. Until it waits in Poll it counts as computing, so a
  // late start takes no time.
  void Join() {
    const std::scoped_lock lock(mu_);
    ++threads_;
  }
  // A thread has ended: the others no longer wait for it.
  void Leave() {
    const std::scoped_lock lock(mu_);
    --threads_;
    changed_.notify_all();
  }
  // Since construction.
  Duration Elapsed() const { return Now() - TimePoint(); }
  size_t polls() const {
    const std::scoped_lock lock(mu_);
    return polls_;
  }

  // Called (if set) when all threads wait, before time advances. True: it has sent something, or
  // advanced the time itself. Set it before threads start.
  std::function<bool()> idle;

 private:
  struct Waiter {
    std::vector<pollfd> fds;
    TimePoint until;
  };

  // No waiter has anything to read, and peers' kernels have received all that this process's TCP
  // sockets sent.
  bool NothingOnItsWay() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::atoi(entry.path().filename().c_str());
      int domain = 0, unsent = 0;
      socklen_t size = sizeof domain;
      if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) continue;
      if (domain != AF_INET && domain != AF_INET6) continue;
      if (ioctl(fd, TIOCOUTQ, &unsent) == 0 && unsent > 0) return false;
    }
    return std::ranges::all_of(waiters_, [](const Waiter* waiter) {
      std::vector<pollfd> fds = waiter->fds;
      return poll(fds.data(), fds.size(), 0) == 0;
    });
  }

  mutable std::mutex mu_;
  std::condition_variable changed_;
  size_t threads_ = 1;
  TimePoint now_{};
  size_t polls_ = 0;
  std::vector<const Waiter*> waiters_;
};

}  // namespace tangram::testing
