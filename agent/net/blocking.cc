#include "agent/net/blocking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tangram::net {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};  // between looks at the stop token

// Waits for a moment at most. True: what was waited for is there.
Result<bool> Look(int fd, short events, const std::stop_token& stop, TimeSource::TimePoint until,
                  TimeSource& time) {
  if (stop.stop_requested()) return Status{Code::kUnavailable, "stopped"};
  const auto left = std::chrono::duration_cast<milliseconds>(until - time.Now());
  if (left.count() <= 0) return Status{Code::kUnavailable, "the other side is silent"};
  pollfd poll_fd{fd, events, 0};
  const int ready = time.Poll(&poll_fd, 1, static_cast<int>(std::min(left, kLook).count()) + 1);
  if (ready < 0 && errno != EINTR) {
    return Status{Code::kUnavailable, fmt::format("poll: {}", std::strerror(errno))};
  }
  return ready > 0;
}

Status Wait(int fd, short events, const std::stop_token& stop, TimeSource::TimePoint until) {
  while (true) {
    const auto there = Look(fd, events, stop, until, SteadyTime());
    if (!there.ok()) return there.status();
    if (*there) return OkStatus();
  }
}

}  // namespace

Result<std::unique_ptr<Stream>> Connect(const std::string& address,
                                        std::shared_ptr<Credentials> credentials,
                                        const std::stop_token& stop, const TcpLimits& limits) {
  const auto until = SteadyTime().Now() + kConnect;
  auto fd = Dial(address, limits);
  if (!fd.ok()) return fd.status();
  auto stream =
      std::make_unique<Stream>(std::move(fd).value(), Side::kDialled, std::move(credentials));
  while (true) {
    const auto done = stream->Handshake();
    Status status = done.status();
    if (status.ok() && *done) return stream;
    if (status.ok()) status = Wait(stream->fd(), stream->waits_for(), stop, until);
    if (!status.ok())
      return Status{status.code(), fmt::format("{}: {}", address, status.message())};
  }
}

Status ReadAll(Stream& stream, std::span<std::byte> out, const std::stop_token& stop,
               TimeSource& time) {
  auto until = time.Now() + kSilence;
  while (!out.empty()) {
    const auto got = stream.Read(out);
    if (!got.ok()) {
      return {got.status().code(),
              fmt::format("{}, with {} bytes to come", got.status().message(), out.size())};
    }
    if (*got == 0) {
      stream.WakeFor(out.size());
      TANGRAM_RETURN_IF_ERROR(Look(stream.fd(), POLLIN, stop, until, time).status());
    } else {
      until = time.Now() + kSilence;
    }
    out = out.subspan(*got);
  }
  return OkStatus();
}

Status WriteAll(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop) {
  while (!bytes.empty()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const auto put = stream.Write({&part, 1});
    if (!put.ok()) return put.status();
    if (*put == 0) {
      TANGRAM_RETURN_IF_ERROR(Wait(stream.fd(), POLLOUT, stop, SteadyTime().Now() + kSilence));
    }
    bytes = bytes.subspan(*put);
  }
  return OkStatus();
}

}  // namespace tangram::net
