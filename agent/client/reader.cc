#include "agent/client/reader.h"

#include <sys/eventfd.h>

#include <chrono>
#include <utility>

#include "agent/base/thread.h"

namespace tangram {

Result<std::unique_ptr<Reader>> Reader::Start(std::shared_ptr<FrameChannel> channel, int ready,
                                              Handles handles) {
  auto reader = std::unique_ptr<Reader>(new Reader(std::move(channel), ready, std::move(handles)));
  eventfd_t none = 0;
  (void)eventfd_read(ready, &none);  // of a previous connection
  auto thread = StartThread([raw = reader.get()] { raw->Read(); });
  if (!thread.ok()) return thread.status();
  reader->thread_ = std::move(*thread);
  return reader;
}

Reader::~Reader() { channel_->Shutdown(); }

void Reader::Read() {
  while (true) {
    auto frame = channel_->Receive(-1);
    const bool end = !frame.ok();
    if (!end && (!frame->has_value() || handles_(&**frame))) continue;
    const std::scoped_lock lock(mu_);
    if (end) {
      end_ = frame.status();
    } else {
      frames_.push_back(std::move(**frame));
    }
    (void)eventfd_write(ready_, 1);
    changed_.notify_all();
    if (end) return;
  }
}

Result<std::optional<Frame>> Reader::Receive(int timeout_ms) {
  std::unique_lock lock(mu_);
  const auto there = [this] { return !frames_.empty() || !end_.ok(); };
  if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), there)) {
    return std::optional<Frame>();
  }
  if (frames_.empty()) return end_;
  std::optional<Frame> first = std::move(frames_.front());
  frames_.pop_front();
  if (!there()) {
    eventfd_t none = 0;
    (void)eventfd_read(ready_, &none);
  }
  return first;
}

bool Reader::ended() {
  const std::scoped_lock lock(mu_);
  return !end_.ok();
}

}  // namespace tangram
