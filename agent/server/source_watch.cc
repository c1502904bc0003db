#include "agent/server/source_watch.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <mutex>

namespace tangram {

SourceWatch::SourceWatch(std::function<Status()> check,
                         std::function<void(const std::string&)> tell,
                         std::chrono::milliseconds every)
    : thread_([check = std::move(check), tell = std::move(tell), every](std::stop_token stop) {
        std::mutex mu;
        std::condition_variable_any wake;
        std::string last;
        std::unique_lock lock(mu);
        while (!stop.stop_requested()) {
          const std::string now = check().message();
          if (now != last && now.empty()) spdlog::info("the checkpoint can be read again");
          if (now != last && !now.empty()) {
            spdlog::error("the checkpoint cannot be read any more: {}", now);
          }
          tell(now);
          last = now;
          wake.wait_for(lock, stop, every, [] { return false; });
        }
      }) {}

}  // namespace tangram
