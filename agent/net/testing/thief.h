// Somebody who wants in: it believes every server, so that only the server's own checks stand
// between it and the bytes.
#pragma once

#include <optional>
#include <string>

#include "agent/net/credentials.h"

namespace tangram::net::testing {

// Connects to `address` by TLS with this certificate, or without one, says `says`, and gives what
// it was told: up to `most` bytes, fewer when the other side hangs up. Blocks.
std::string Steal(const std::string& address, const std::optional<TlsTexts>& shows,
                  const std::string& says, size_t most);

}  // namespace tangram::net::testing
