// Addresses: "host:port", or "[host]:port" if the host is an IPv6 address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/base/status.h"

namespace tangram::net {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// kInvalid: no host, no port, a port beyond 65535, or an IPv6 address without brackets.
Result<HostPort> ParseHostPort(const std::string& text);
// Inverse of ParseHostPort. The host may already have brackets.
std::string JoinHostPort(std::string_view host, uint16_t port);

}  // namespace tangram::net
