#include "agent/client/mapper.h"

#include <poll.h>

#include <utility>

#include "agent/base/limits.h"

namespace tangram {

Mapper::~Mapper() {
  const std::scoped_lock lock(mu_);
  over_ = true;
  changed_.notify_all();
}

void Mapper::Do(std::function<void()> work) {
  const std::scoped_lock lock(mu_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

bool Mapper::idle() {
  const std::scoped_lock lock(mu_);
  return work_.empty();
}

bool Mapper::Await(int fd, std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto over = [this] {
    const std::scoped_lock lock(mu_);
    return over_;
  };
  const auto deadline = Clock::now() + limit;
  pollfd wanted{fd, POLLIN, 0};
  while (!over() && poll(&wanted, 1, static_cast<int>(limits::kStopLook.count())) <= 0) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

void Mapper::Run() {
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return over_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()>& first = work_.front();
    lock.unlock();
    first();
    lock.lock();
    work_.pop_front();
  }
}

}  // namespace tangram
