#include "agent/mover/net.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tangram::mover {
namespace {

constexpr int kLookMs = 100;  // between looks at the stop token
constexpr size_t kMostParts = 512;

struct FreeAddresses {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};

Result<std::unique_ptr<addrinfo, FreeAddresses>> Resolve(const std::string& address, bool passive) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos)
    return Status(Code::kInvalid, fmt::format("'{}' is no host:port", address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(),
                                &hints, &found);
  if (error != 0)
    return Status(Code::kUnavailable, fmt::format("'{}': {}", address, gai_strerror(error)));
  return std::unique_ptr<addrinfo, FreeAddresses>(found);
}

Status Failed(const std::string& what) {
  return {Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno))};
}

Status Wait(int fd, short events, const std::stop_token& stop) {
  for (int waited = 0; waited < kSilenceMs; waited += kLookMs) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    pollfd poll_fd{fd, events, 0};
    const int ready = poll(&poll_fd, 1, kLookMs);
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return Failed("poll");
  }
  return {Code::kUnavailable, fmt::format("the other side was silent for {} s", kSilenceMs / 1000)};
}

}  // namespace

Result<UniqueFd> Listen(const std::string& address) {
  auto resolved = Resolve(address, true);
  if (!resolved.ok()) return resolved.status();
  const addrinfo& at = **resolved;
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed("socket");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), 64) != 0) {
    return Failed("listening on " + address);
  }
  return fd;
}

Result<uint16_t> PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return Failed("getsockname");
  const auto port = address.ss_family == AF_INET6
                        ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                        : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

Result<UniqueFd> Connect(const std::string& address) {
  auto resolved = Resolve(address, false);
  if (!resolved.ok()) return resolved.status();
  const addrinfo& at = **resolved;
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed("socket");
  if (connect(fd.get(), at.ai_addr, at.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Failed("connecting to " + address);
    pollfd poll_fd{fd.get(), POLLOUT, 0};
    if (poll(&poll_fd, 1, 5000) <= 0)
      return Status(Code::kUnavailable, "connecting to " + address + ": no answer for 5 s");
    socklen_t length = sizeof errno;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &errno, &length);
    if (errno != 0) return Failed("connecting to " + address);
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

Status ReadAll(int fd, std::span<std::byte> out, std::stop_token stop) {
  while (!out.empty()) {
    const ssize_t n = recv(fd, out.data(), out.size(), 0);
    if (n > 0) {
      out = out.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return {Code::kUnavailable,
              fmt::format("the other side closed with {} bytes to come", out.size())};
    } else if (errno == EAGAIN) {
      TANGRAM_RETURN_IF_ERROR(Wait(fd, POLLIN, stop));
    } else if (errno != EINTR) {
      return Failed("receiving");
    }
  }
  return OkStatus();
}

Status WriteAll(int fd, std::vector<iovec> parts, std::stop_token stop, Lease* lease) {
  size_t at = 0;
  while (at < parts.size()) {
    msghdr message{};
    message.msg_iov = parts.data() + at;
    message.msg_iovlen = std::min(parts.size() - at, kMostParts);
    ssize_t n = -1;
    int error = 0;
    // The socket does not block, so neither does whoever wants to end the lease.
    const auto send = [&] {
      n = sendmsg(fd, &message, MSG_NOSIGNAL);
      error = errno;
    };
    if (lease == nullptr) {
      send();
    } else if (!lease->Use(send)) {
      return {Code::kUnavailable, "the memory that was granted is no longer there"};
    }
    errno = error;
    if (n < 0) {
      if (errno == EAGAIN) {
        TANGRAM_RETURN_IF_ERROR(Wait(fd, POLLOUT, stop));
      } else if (errno != EINTR) {
        return Failed("sending");
      }
      continue;
    }
    for (auto sent = static_cast<size_t>(n); at < parts.size();) {
      const size_t step = std::min(sent, parts[at].iov_len);
      parts[at].iov_base = static_cast<std::byte*>(parts[at].iov_base) + step;
      parts[at].iov_len -= step;
      sent -= step;
      if (parts[at].iov_len > 0) break;
      ++at;
    }
  }
  return OkStatus();
}

}  // namespace tangram::mover
