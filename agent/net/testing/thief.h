// An attacker that trusts every server, so only the server's own checks protect the bytes.
#pragma once

#include <optional>
#include <string>

#include "agent/net/credentials.h"

namespace tangram::net::testing {

// Connects to `address` by TLS with this certificate, or without one, sends `says`, and returns the
// reply: up to `most` bytes, fewer if the server disconnects. Blocks.
std::string Steal(const std::string& address, const std::optional<TlsTexts>& shows,
                  const std::string& says, size_t most);

}  // namespace tangram::net::testing
