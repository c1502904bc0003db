// The thread that reads what the agent sends, so that the agent waits for no step of the engine
// when it maps, unmaps, or passes descriptors: those are handled here, everything else by Poll.
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

  // As FrameChannel::Receive, of the frames that are not handled in the thread.
  Result<std::optional<Frame>> Receive(int timeout_ms);
  // The thread has read everything that there was.
  bool ended();

 private:
  Reader(std::shared_ptr<FrameChannel> channel, int ready, Handles handles)
      : channel_(std::move(channel)), ready_(ready), handles_(std::move(handles)) {}
  void Read();

  const std::shared_ptr<FrameChannel> channel_;
  const int ready_;  // readable: a frame, or the end
  const Handles handles_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  Status end_;  // of the connection
  std::jthread thread_;
};

}  // namespace tangram
