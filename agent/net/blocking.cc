#include "agent/net/blocking.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "agent/base/wait.h"

namespace tangram::net {
namespace {

using std::chrono::milliseconds;

// Waits for one poll interval at most, whether or not the event occurs. kUnavailable: a stop was
// requested, or the peer was silent for the limit of `wait`.
Status Look(int fd, short events, const std::stop_token& stop, Wait* wait, TimeSource& time) {
  if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
  if (wait->Silent(0)) return {Code::kUnavailable, "the peer is unresponsive"};
  pollfd poll_fd{fd, events, 0};
  if (time.Poll(&poll_fd, 1, static_cast<int>(limits::kStopLook.count())) < 0 && errno != EINTR) {
    return {Code::kUnavailable, fmt::format("poll: {}", std::strerror(errno))};
  }
  wait->Look(time.Now());
  return OkStatus();
}

Wait WaitFor(milliseconds limit, const TimeSource& time) { return {1, limit, limit, time.Now()}; }

}  // namespace

Result<std::unique_ptr<Stream>> Connect(const std::string& address,
                                        std::shared_ptr<Credentials> credentials,
                                        const std::stop_token& stop, const WaitLimits& limits,
                                        const TcpLimits& tcp) {
  Wait wait = WaitFor(limits.connect, SteadyTime());
  auto fd = Dial(address, tcp);
  if (!fd.ok()) return fd.status();
  auto stream =
      std::make_unique<Stream>(std::move(fd).value(), Side::kDialled, std::move(credentials));
  stream->set_silence(limits.silence);
  while (true) {
    const auto done = stream->Handshake();
    Status status = done.status();
    if (status.ok() && *done) return stream;
    if (status.ok()) status = Look(stream->fd(), stream->waits_for(), stop, &wait, SteadyTime());
    if (!status.ok())
      return Status{status.code(), fmt::format("{}: {}", address, status.message())};
  }
}

Status ReadAll(Stream& stream, std::span<std::byte> out, const std::stop_token& stop,
               TimeSource& time) {
  std::optional<Wait> wait;  // since the last received byte
  while (!out.empty()) {
    const auto got = stream.Read(out);
    if (!got.ok()) {
      return {got.status().code(),
              fmt::format("{}, {} bytes are missing", got.status().message(), out.size())};
    }
    if (*got == 0) {
      stream.WakeFor(out.size());
      if (!wait) wait = WaitFor(stream.silence(), time);
      TANGRAM_RETURN_IF_ERROR(Look(stream.fd(), POLLIN, stop, &*wait, time));
    } else {
      wait.reset();
    }
    out = out.subspan(*got);
  }
  return OkStatus();
}

Status WriteAll(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop) {
  std::optional<Wait> wait;  // since the last sent byte
  while (!bytes.empty()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const auto put = stream.Write({&part, 1});
    if (!put.ok()) return put.status();
    if (*put == 0) {
      if (!wait) wait = WaitFor(stream.silence(), SteadyTime());
      TANGRAM_RETURN_IF_ERROR(Look(stream.fd(), POLLOUT, stop, &*wait, SteadyTime()));
    } else {
      wait.reset();
    }
    bytes = bytes.subspan(*put);
  }
  return OkStatus();
}

}  // namespace tangram::net
