#include "agent/client/mapper.h"

#include <utility>

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

bool Mapper::ending() {
  const std::scoped_lock lock(mu_);
  return over_;
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
