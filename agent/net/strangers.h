// Connections whose peer is not authenticated yet.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

namespace tangram::net {

struct StrangerLimits {
  size_t most = 512;
  // Maximum time until the peer is authenticated.
  std::chrono::milliseconds until{10'000};
  // At the maximum, connections older than this make room. Younger ones never do: new ones wait in
  // the kernel's backlog.
  std::chrono::milliseconds young{1'000};
};

// T is one connection. One thread at a time.
template <typename T>
class Strangers {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Strangers(StrangerLimits limits) : limits_(limits) {}

  // Closes expired connections and makes room. False: accept no connection now.
  bool MayEnter(Clock::time_point now) {
    while (!all_.empty() && now - all_.front().since > limits_.until) all_.pop_front();
    if (all_.size() < limits_.most) return true;
    if (now - all_.front().since <= limits_.young) return false;
    all_.pop_front();
    return true;
  }
  void Enter(std::unique_ptr<T> connection, Clock::time_point now) {
    all_.push_back({std::move(connection), now});
  }
  size_t size() const { return all_.size(); }
  T& at(size_t i) { return *all_[i].connection; }
  // Takes one out; its place is empty until Sweep.
  std::unique_ptr<T> Leave(size_t i) { return std::move(all_[i].connection); }
  void Sweep() {
    std::erase_if(all_, [](const Entry& entry) { return entry.connection == nullptr; });
  }

 private:
  struct Entry {
    std::unique_ptr<T> connection;
    Clock::time_point since;
  };

  const StrangerLimits limits_;
  std::deque<Entry> all_;  // oldest first
};

}  // namespace tangram::net
