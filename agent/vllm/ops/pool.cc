#include "agent/vllm/ops/pool.h"

namespace tangram::experts {

Pool::Pool(uint32_t threads) {
  for (uint32_t i = 1; i < threads; ++i) others_.emplace_back([this, i] { Wait(i); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Pool::Run(uint32_t count, const std::function<void(uint32_t, uint32_t)>& work) {
  if (others_.empty() || count <= 1) {
    for (uint32_t item = 0; item < count; ++item) work(item, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    working_ = static_cast<uint32_t>(others_.size());
    ++round_;
  }
  begun_.notify_all();
  Take(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return working_ == 0; });
}

void Pool::Wait(uint32_t thread) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return ending_ || round_ != seen; });
    if (ending_) return;
    seen = round_;
    lock.unlock();
    Take(thread);
    lock.lock();
    if (--working_ == 0) done_.notify_one();
  }
}

void Pool::Take(uint32_t thread) {
  for (uint32_t item; (item = next_.fetch_add(1)) < count_;) (*work_)(item, thread);
}

}  // namespace tangram::experts
