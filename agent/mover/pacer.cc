#include "agent/mover/pacer.h"

#include <condition_variable>
#include <utility>

namespace tangram::mover {

Pacer::Time Pacer::RealTime() {
  return {[] { return Nanoseconds(std::chrono::steady_clock::now().time_since_epoch()); },
          [](Nanoseconds span, const std::stop_token& stop) {
            std::mutex mu;
            std::condition_variable_any never;
            std::unique_lock lock(mu);
            (void)never.wait_for(lock, stop, span, [] { return false; });
          }};
}

void Pacer::Begin() {
  if (!share_) return;
  const std::scoped_lock lock(mu_);
  workers_[std::this_thread::get_id()].since = time_.now();
}

void Pacer::Moved(const std::stop_token& stop) {
  if (!share_) return;
  const auto me = std::this_thread::get_id();
  Nanoseconds worked;
  {
    const std::scoped_lock lock(mu_);
    const Nanoseconds now = time_.now();
    // A source's own threads do not call Begin.
    Worker& worker = workers_.try_emplace(me, Worker{.since = now}).first->second;
    worker.worked += now - std::exchange(worker.since, now);
    if (worker.worked < kSlice) return;
    worked = std::exchange(worker.worked, Nanoseconds(0));
  }
  double share = share_();
  for (; share <= 0 && !stop.stop_requested(); share = share_()) time_.sleep(kSlice, stop);
  if (share > 0 && share < 1) {
    time_.sleep(std::chrono::duration_cast<Nanoseconds>(worked * (1 / share - 1)), stop);
  }
  Begin();
}

}  // namespace tangram::mover
