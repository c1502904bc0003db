// TCP sockets of the mesh: non-blocking, no delay.
#pragma once

#include <cstdint>
#include <string>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"

namespace tangram::engine {

struct HostPort {
  std::string host;
  std::string port;
};

// "host:port" or "[v6]:port".
Result<HostPort> ParseHostPort(const std::string& text);
// Listens; *port is the real one.
Result<UniqueFd> ListenTcp(const std::string& host_port, uint16_t* port);
// Starts to connect; the outcome shows at the first write.
Result<UniqueFd> DialTcp(const std::string& host_port);
// The next waiting connection; an empty descriptor when there is none.
UniqueFd AcceptTcp(int listener);

}  // namespace tangram::engine
