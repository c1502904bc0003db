// Requests of gateways on their way to the step thread.
#pragma once

#include <algorithm>
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
  // Bytes of submits that the step thread has not taken. A larger submit enters only an empty
  // inbox.
  static constexpr size_t kMostBytes = 256 << 20;

  explicit Inbox(size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // False: the inbox is full, and the submit was not put. Cancels are always put: a gateway has no
  // more of them than it has requests.
  bool Put(InboxItem item) {
    {
      std::lock_guard lock(mu_);
      if (const auto* submit = std::get_if<SubmitItem>(&item)) {
        const size_t bytes = sizeof item + submit->submit.ByteSizeLong();
        if (bytes_ > 0 && bytes > most_bytes_ - std::min(bytes_, most_bytes_)) return false;
        bytes_ += bytes;
      }
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
    return true;
  }
  std::vector<InboxItem> TakeAll() {
    std::lock_guard lock(mu_);
    bytes_ = 0;
    return std::exchange(items_, {});
  }
  // Waits until an item is here, or for at most `time`.
  void WaitFor(std::chrono::milliseconds time) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, time, [this] { return !items_.empty(); });
  }

 private:
  const size_t most_bytes_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<InboxItem> items_;
  size_t bytes_ = 0;  // of the submits in it
};

}  // namespace tangram::engine
