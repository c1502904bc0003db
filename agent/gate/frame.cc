#include "agent/gate/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "agent/base/utf8.h"

namespace tangram {
namespace {

std::string Errno(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

uint32_t LengthOf(std::string_view bytes) {
  uint32_t length = 0;
  for (int i = 0; i < 4; ++i) length |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return length;
}

}  // namespace

Status FrameDecoder::Fail(std::string message) {
  broken_ = {Code::kInvalid, "engine socket: " + std::move(message)};
  fds_.clear();
  return broken_;
}

void FrameDecoder::Feed(std::string_view bytes) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_.append(bytes);
}

Result<std::optional<Frame>> FrameDecoder::Next() {
  if (!broken_.ok()) return broken_;
  if (fds_.size() > 2 * kMaxFrameFds) return Fail("received descriptors without a message");
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < 4) return std::optional<Frame>();
  const uint32_t length = LengthOf(rest);
  if (length > kMaxFrameBytes) {
    return Fail("frame of " + std::to_string(length) + " bytes, the limit is " +
                std::to_string(kMaxFrameBytes));
  }
  if (rest.size() - 4 < length) return std::optional<Frame>();
  Frame frame;
  if (!frame.message.ParseFromArray(rest.data() + 4, static_cast<int>(length))) {
    return Fail("frame of " + std::to_string(length) + " bytes is not an EngineMessage");
  }
  if (frame.message.body_case() == v1::EngineMessage::BODY_NOT_SET) {
    return Fail("message without a body (a newer peer?)");
  }
  const auto claimed = static_cast<size_t>(frame.message.fd_index_size());
  if (claimed > fds_.size()) {
    return Fail("message claims " + std::to_string(claimed) + " descriptors, received " +
                std::to_string(fds_.size()));
  }
  for (size_t i = 0; i < claimed; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  begin_ += 4 + length;
  return std::optional<Frame>(std::move(frame));
}

Status FrameChannel::Send(v1::EngineMessage message, std::span<const PassedFd> fds) {
  const std::scoped_lock lock(send_mu_);
  // The only text that comes from the engine. If it were not UTF-8, the agent could not read the
  // frame and would end the session.
  if (message.has_prepared()) {
    message.mutable_prepared()->set_message(ValidUtf8(message.prepared().message()));
  }
  while (fds.size() > kMaxFrameFds) {
    v1::EngineMessage before;
    before.mutable_descriptors();
    TANGRAM_RETURN_IF_ERROR(SendOne(std::move(before), fds.first(kMaxFrameFds)));
    fds = fds.subspan(kMaxFrameFds);
  }
  return SendOne(std::move(message), fds);
}

Status FrameChannel::SendOne(v1::EngineMessage message, std::span<const PassedFd> fds) {
  message.clear_fd_index();
  std::vector<int> numbers;  // in this process
  for (const PassedFd& passed : fds) {
    message.add_fd_index(passed.number);
    numbers.push_back(passed.fd);
  }
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return {Code::kInvalid, "message of " + std::to_string(size) + " bytes is over the limit of " +
                                std::to_string(kMaxFrameBytes)};
  }
  std::string bytes;
  bytes.reserve(4 + size);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(size >> (8 * i));
  if (!message.AppendToString(&bytes)) {
    return {Code::kInternal, "message of " + std::to_string(size) + " bytes cannot be written"};
  }

  const auto deadline = time_.Now() + send_timeout_;
  size_t done = 0;
  while (done < bytes.size()) {
    iovec iov{bytes.data() + done, bytes.size() - done};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
    if (done == 0 && !fds.empty()) {
      msg.msg_control = control;
      msg.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* head = CMSG_FIRSTHDR(&msg);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(head), numbers.data(), sizeof(int) * numbers.size());
    }
    const ssize_t n = sendmsg(socket_.get(), &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) {
      return {Code::kUnavailable, Errno("engine socket: send")};
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - time_.Now()).count();
    pollfd wait{socket_.get(), POLLOUT, 0};
    if (left <= 0 || time_.Poll(&wait, 1, static_cast<int>(left)) == 0) {
      // Part of a frame may have been sent, so the stream is unusable.
      shutdown(socket_.get(), SHUT_RDWR);
      return {Code::kUnavailable, "engine socket: the peer did not receive the message within " +
                                      std::to_string(send_timeout_.count()) + " ms"};
    }
  }
  return OkStatus();
}

Status FrameChannel::ReadSome() {
  char bytes[64 << 10];
  iovec iov{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control;
  msg.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(socket_.get(), &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    if (errno == EINTR || errno == EAGAIN) return OkStatus();
    return {Code::kUnavailable, Errno("engine socket: receive")};
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&msg); head != nullptr; head = CMSG_NXTHDR(&msg, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      decoder_.FeedFd(UniqueFd(fd));
    }
  }
  if ((msg.msg_flags & MSG_CTRUNC) != 0) {
    return {Code::kInvalid, "engine socket: descriptors were lost; check the limit of open files"};
  }
  if (n == 0) return {Code::kUnavailable, "engine socket: the peer closed the connection"};
  decoder_.Feed({bytes, static_cast<size_t>(n)});
  return OkStatus();
}

Result<std::optional<Frame>> FrameChannel::Receive(int timeout_ms) {
  const auto deadline = time_.Now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    auto frame = decoder_.Next();
    if (!frame.ok() || frame->has_value()) return frame;
    int wait_ms = timeout_ms;
    if (timeout_ms > 0) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - time_.Now()).count();
      wait_ms = left > 0 ? static_cast<int>(left) : 0;
    }
    pollfd wait{socket_.get(), POLLIN, 0};
    const int ready = time_.Poll(&wait, 1, wait_ms);
    if (ready < 0) {
      if (errno == EINTR) continue;
      return Status{Code::kInternal, Errno("engine socket: poll")};
    }
    if (ready == 0) return std::optional<Frame>();
    if (Status status = ReadSome(); !status.ok()) return status;
  }
}

void FrameChannel::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

void FrameChannel::EndSending() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace tangram
