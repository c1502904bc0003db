// Frames of the socket between agent and engine: a 4-byte little-endian length, then a
// v1.EngineMessage. Descriptors arrive with the first byte of a frame, and the message has their
// count (proto/tangram/v1/engine.proto).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/time_source.h"
#include "agent/base/unique_fd.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

constexpr uint32_t kMaxFrameBytes = 64u << 20;
constexpr size_t kMaxFrameFds = 253;  // of the kernel, per SCM_RIGHTS message

// A descriptor with the number that extents use for it.
struct PassedFd {
  uint32_t number = 0;
  int fd = -1;
};

struct Frame {
  v1::EngineMessage message;
  std::vector<UniqueFd> fds;  // as many as the message has numbers
};

// Decodes a byte stream. Never holds more than one frame's bytes beyond the bytes fed. After an
// error the stream is lost: every later call returns the same error.
class FrameDecoder {
 public:
  void Feed(std::string_view bytes);
  void FeedFd(UniqueFd fd) { fds_.push_back(std::move(fd)); }
  // nullopt: a frame is not complete yet. kInvalid: not a frame (length, message, descriptors).
  Result<std::optional<Frame>> Next();

 private:
  Status Fail(std::string message);

  std::string buffer_;
  size_t begin_ = 0;  // of the bytes not decoded yet
  std::deque<UniqueFd> fds_;
  Status broken_;
};

// A connected stream socket. One thread receives; any thread may send.
class FrameChannel {
 public:
  // `time` outlives it.
  explicit FrameChannel(UniqueFd socket,
                        std::chrono::milliseconds send_timeout = std::chrono::seconds(10),
                        TimeSource& time = SteadyTime())
      : socket_(std::move(socket)), send_timeout_(send_timeout), time_(time) {}

  int fd() const { return socket_.get(); }
  // Sends the whole message or returns kUnavailable (the other side is gone, or did not read it in
  // time). `fds` stay the caller's; those beyond a message's limit are sent ahead of it.
  Status Send(v1::EngineMessage message, std::span<const PassedFd> fds = {});
  // nullopt: no whole frame after timeout_ms (0: only available bytes; -1: no limit). kUnavailable:
  // the other side is gone; kInvalid: its bytes are no frame.
  Result<std::optional<Frame>> Receive(int timeout_ms);
  // Ends both directions; a blocked Receive returns kUnavailable.
  void Shutdown();
  // Ends sending. The other side's end is still detected.
  void EndSending();

 private:
  Status SendOne(v1::EngineMessage message, std::span<const PassedFd> fds);
  // Appends what the socket has. kUnavailable at its end.
  Status ReadSome();

  UniqueFd socket_;
  std::chrono::milliseconds send_timeout_;
  TimeSource& time_;
  std::mutex send_mu_;
  FrameDecoder decoder_;
};

}  // namespace tangram
