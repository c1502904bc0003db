#include "agent/server/source_watch.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "agent/base/thread.h"

namespace tangram {

struct SourceWatch::Shared {
  std::function<Status()> check;
  std::function<void(const std::string&)> tell;  // guarded by mu

  std::mutex mu;
  std::condition_variable changed;
  bool stopping = false, checking = false;
};

SourceWatch::SourceWatch(std::function<Status()> check,
                         std::function<void(const std::string&)> tell)
    : shared_(std::make_shared<Shared>()) {
  shared_->check = std::move(check);
  shared_->tell = std::move(tell);
}

Result<std::unique_ptr<SourceWatch>> SourceWatch::Start(
    std::function<Status()> check, std::function<void(const std::string&)> tell,
    std::chrono::milliseconds every) {
  auto watch = std::unique_ptr<SourceWatch>(new SourceWatch(std::move(check), std::move(tell)));
  auto thread = StartThread([shared = watch->shared_, every] { Run(shared, every); });
  if (!thread.ok()) return thread.status();
  watch->thread_ = std::move(thread).value();
  return watch;
}

SourceWatch::~SourceWatch() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mu);
  shared_->stopping = true;
  shared_->changed.notify_all();
  if (shared_->changed.wait_for(lock, kGrace, [this] { return !shared_->checking; })) {
    lock.unlock();
    thread_.join();
  } else {
    thread_.detach();  // ends when the file system answers, or with the process
  }
}

void SourceWatch::Run(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds every) {
  std::string last;
  std::unique_lock lock(shared->mu);
  while (!shared->stopping) {
    shared->checking = true;
    lock.unlock();
    const std::string now = shared->check().message();
    lock.lock();
    shared->checking = false;
    shared->changed.notify_all();
    if (shared->stopping) return;
    if (now != last && now.empty()) spdlog::info("checkpoint readable again");
    if (now != last && !now.empty()) {
      spdlog::error("checkpoint unreadable error=\"{}\"", now);
    }
    shared->tell(now);
    last = now;
    shared->changed.wait_for(lock, every, [&] { return shared->stopping; });
  }
}

}  // namespace tangram
