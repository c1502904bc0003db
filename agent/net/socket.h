// Sockets of TCP: non-blocking, no delay, and with an end if the other side is gone without a word.
// An address unix:PATH is a socket of this machine, in the file system; limits of TCP mean nothing
// there, as the kernel knows who is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"

namespace tangram::net {

// When a connection whose other side does not answer is given up by the kernel (tcp(7)).
struct TcpLimits {
  // Without a byte for so long, the other side's kernel is asked, again and again.
  std::chrono::seconds keep_alive_idle{3}, keep_alive_interval{1};
  // TCP_USER_TIMEOUT: nothing was acknowledged, or the other side took nothing, for so long. It
  // also limits how long a reader may leave its buffer full.
  std::chrono::milliseconds user_timeout{10'000};
};

constexpr std::string_view kUnix = "unix:";

// Port 0: any. Of unix: only this user's processes may connect; what an earlier process left at the
// path is removed. [::] is all addresses, of IPv4 and of IPv6, also on a machine that has only one
// kind.
Result<UniqueFd> Listen(const std::string& address);
Result<uint16_t> PortOf(int fd);
// The next connection that waits; an empty descriptor when none does. An error: not now, out of
// descriptors or memory.
Result<UniqueFd> Accept(int listener, const TcpLimits& limits = {});
// Starts to connect; it is done, or failed (SO_ERROR), when the socket can be written.
Result<UniqueFd> Dial(const std::string& address, const TcpLimits& limits = {});
// Whether a process that this one may connect to has the socket of a unix: address, or only its
// name is left in the file system. That process hears nothing of it.
bool InUse(const std::string& address);

}  // namespace tangram::net
