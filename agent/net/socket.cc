#include "agent/net/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "agent/net/address.h"

namespace tangram::net {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr int kBacklog = 1024;

Result<Addresses> Resolve(const std::string& address, bool passive) {
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string port = std::to_string(parsed->port);
  const int error = getaddrinfo(parsed->host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return Status{Code::kUnavailable,
                  fmt::format("'{}' does not resolve: {}", address, gai_strerror(error))};
  }
  return Addresses(found, &freeaddrinfo);
}

Status Failed(Code code, const std::string& what) {
  return {code, fmt::format("{}: {}", what, std::strerror(errno))};
}

void Set(int fd, int level, int name, int64_t value) {
  const int number = static_cast<int>(value);
  (void)setsockopt(fd, level, name, &number, sizeof number);
}

void Apply(int fd, const TcpLimits& limits) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, limits.keep_alive_idle.count());
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, limits.keep_alive_interval.count());
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, limits.user_timeout.count());
}

Result<sockaddr_un> UnixAddress(const std::string& address) {
  const std::string path = address.substr(kUnix.size());
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof out.sun_path) {
    return Status{Code::kInvalid, fmt::format("'{}': the path must have 1 to {} bytes", address,
                                              sizeof out.sun_path - 1)};
  }
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

Result<UniqueFd> UnixSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed(Code::kInternal, "socket");
  return fd;
}

Result<UniqueFd> ListenUnix(const std::string& address) {
  const auto at = UnixAddress(address);
  if (!at.ok()) return at.status();
  auto fd = UnixSocket();
  if (!fd.ok()) return fd;
  struct stat there {};
  if (lstat(at->sun_path, &there) == 0 && S_ISSOCK(there.st_mode)) unlink(at->sun_path);
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&*at), sizeof *at) != 0 ||
      chmod(at->sun_path, S_IRUSR | S_IWUSR) != 0 || listen(fd->get(), kBacklog) != 0) {
    return Failed(Code::kInvalid, "cannot listen on " + address);
  }
  return fd;
}

Result<UniqueFd> DialUnix(const std::string& address) {
  const auto at = UnixAddress(address);
  if (!at.ok()) return at.status();
  auto fd = UnixSocket();
  // A full backlog returns EAGAIN; connect() does not wait.
  if (fd.ok() && connect(fd->get(), reinterpret_cast<const sockaddr*>(&*at), sizeof *at) != 0) {
    return Failed(Code::kUnavailable, "connecting to " + address);
  }
  return fd;
}

}  // namespace

bool InUse(const std::string& address) {
  const auto at = UnixAddress(address);
  if (!at.ok()) return false;
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The kernel rejects a socket of another type only after it has found a live one.
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&*at), sizeof *at) != 0 &&
         errno == EPROTOTYPE;
}

Result<UniqueFd> Listen(const std::string& address) {
  if (address.starts_with(kUnix)) return ListenUnix(address);
  const auto resolved = Resolve(address, true);
  if (!resolved.ok()) return resolved.status();
  const addrinfo& at = **resolved;
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (at.ai_family == AF_INET6 &&
      IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(at.ai_addr)->sin6_addr)) {
    if (!fd && errno == EAFNOSUPPORT) {  // a kernel without IPv6
      return Listen(JoinHostPort("0.0.0.0", ParseHostPort(address)->port));
    }
    Set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (!fd) return Failed(Code::kInternal, "socket");
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    return Failed(Code::kInvalid, "cannot listen on " + address);
  }
  return fd;
}

Result<uint16_t> PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Failed(Code::kInternal, "getsockname");
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Result<UniqueFd> Accept(int listener, const TcpLimits& limits) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    Apply(fd.get(), limits);
    return fd;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return Failed(Code::kUnavailable, "accepting a connection");
    default:  // no connection waits, or it was closed
      return fd;
  }
}

Result<UniqueFd> Dial(const std::string& address, const TcpLimits& limits) {
  if (address.starts_with(kUnix)) return DialUnix(address);
  const auto resolved = Resolve(address, false);
  if (!resolved.ok()) return resolved.status();
  const addrinfo& at = **resolved;
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed(Code::kInternal, "socket");
  Apply(fd.get(), limits);
  if (connect(fd.get(), at.ai_addr, at.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return Failed(Code::kUnavailable, "connecting to " + address);
  }
  return fd;
}

}  // namespace tangram::net
