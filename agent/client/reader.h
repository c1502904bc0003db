// The thread that reads the agent's messages, so that the agent never waits for a step of the
// engine to map, unmap, or pass descriptors. It handles those; Poll handles all others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "agent/base/status.h"
#include "agent/gate/frame.h"

namespace tangram {

class Reader {
 public:
  // In the reader's thread. True: the frame is handled.
  using Handles = std::function<bool(Frame* frame)>;

  // `ready` is an eventfd that outlives it. kUnavailable: no thread.
  static Result<std::unique_ptr<Reader>> Start(std::shared_ptr<FrameChannel> channel, int ready,
                                               Handles handles);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  // Shuts the channel down.
  ~Reader();

  // As FrameChannel::Receive, for frames that the thread does not handle.
  Result<std::optional<Frame>> Receive(int timeout_ms);
  // Whether the connection ended and all its frames were read.
  bool ended();

 private:
  Reader(std::shared_ptr<FrameChannel> channel, int ready, Handles handles)
      : channel_(std::move(channel)), ready_(ready), handles_(std::move(handles)) {}
  void Read();

  const std::shared_ptr<FrameChannel> channel_;
  const int ready_;  // readable: a frame waits, or the connection ended
  const Handles handles_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  Status end_;  // of the connection
  std::jthread thread_;
};

}  // namespace tangram
