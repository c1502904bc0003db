// What gateways ask for, on its way to the step thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

struct SubmitItem {
  std::string gateway;
  v1::Submit submit;
};
struct CancelItem {
  std::string request;
};
using InboxItem = std::variant<SubmitItem, CancelItem>;

// Any thread puts, the step thread takes.
class Inbox {
 public:
  void Put(InboxItem item) {
    {
      std::lock_guard lock(mu_);
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }
  std::vector<InboxItem> TakeAll() {
    std::lock_guard lock(mu_);
    return std::exchange(items_, {});
  }
  // Until something is here, or the time is over.
  void WaitFor(std::chrono::milliseconds time) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, time, [this] { return !items_.empty(); });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<InboxItem> items_;
};

}  // namespace tangram::engine
