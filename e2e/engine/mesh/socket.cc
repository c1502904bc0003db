#include "e2e/engine/mesh/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace tangram::engine {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host_port, bool passive) {
  Result<HostPort> parsed = ParseHostPort(host_port);
  if (!parsed.ok()) return parsed.status();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(parsed->host.c_str(), parsed->port.c_str(), &hints, &list);
  if (error != 0) {
    return Status{Code::kUnavailable, host_port + " does not resolve: " + gai_strerror(error)};
  }
  return AddressList(list, &freeaddrinfo);
}

std::string Errno() { return std::strerror(errno); }

void SetNoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

}  // namespace

Result<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return Status{Code::kInvalid, "\"" + text + "\" is not host:port"};
  }
  HostPort out{text.substr(0, colon), text.substr(colon + 1)};
  if (out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  return out;
}

Result<UniqueFd> ListenTcp(const std::string& host_port, uint16_t* port) {
  Result<AddressList> list = Resolve(host_port, true);
  if (!list.ok()) return list.status();
  const addrinfo& at = **list;
  UniqueFd fd(socket(at.ai_family, at.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Status{Code::kInternal, "socket: " + Errno()};
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), 1024) != 0) {
    return Status{Code::kInvalid, "cannot listen at " + host_port + ": " + Errno()};
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return fd;
}

Result<UniqueFd> DialTcp(const std::string& host_port) {
  Result<AddressList> list = Resolve(host_port, false);
  if (!list.ok()) return list.status();
  const addrinfo& at = **list;
  UniqueFd fd(socket(at.ai_family, at.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Status{Code::kInternal, "socket: " + Errno()};
  SetNoDelay(fd.get());
  if (connect(fd.get(), at.ai_addr, at.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return Status{Code::kUnavailable, "cannot reach " + host_port + ": " + Errno()};
  }
  return fd;
}

UniqueFd AcceptTcp(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) SetNoDelay(fd.get());
  return fd;
}

}  // namespace tangram::engine
