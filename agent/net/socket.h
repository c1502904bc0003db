// TCP sockets: non-blocking, no delay, with a timeout for peers that disappear silently. An address
// unix:PATH is a socket of this machine, in the file system. TCP limits do not apply to it, because
// the kernel detects the peer's end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"

namespace tangram::net {

// When the kernel closes a connection whose peer does not answer (tcp(7)).
struct TcpLimits {
  // After this idle time the peer's kernel is probed, repeatedly.
  std::chrono::seconds keep_alive_idle{3}, keep_alive_interval{1};
  // TCP_USER_TIMEOUT: for this long no byte was acknowledged, or the peer accepted none. It also
  // limits how long a reader may leave its buffer full.
  std::chrono::milliseconds user_timeout{10'000};
};

constexpr std::string_view kUnix = "unix:";

// Port 0: any. unix: only this user's processes may connect; a leftover socket at the path is
// removed. [::] is all addresses, IPv4 and IPv6, also on a machine that has only one kind.
Result<UniqueFd> Listen(const std::string& address);
Result<uint16_t> PortOf(int fd);
// The next waiting connection; an empty descriptor if none waits. An error is temporary: out of
// descriptors or memory.
Result<UniqueFd> Accept(int listener, const TcpLimits& limits = {});
// Starts to connect. Once the socket is writable, it has connected or failed (SO_ERROR).
Result<UniqueFd> Dial(const std::string& address, const TcpLimits& limits = {});
// Whether a process that this one may connect to has the socket of a unix: address open, or only
// its name is left in the file system. That process does not notice the check.
bool InUse(const std::string& address);

}  // namespace tangram::net
