// Blocking sockets that can be given up: every wait ends when a stop is asked for, the
// other side is silent for too long, or it is gone.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/mover/grants.h"

namespace tangram::mover {

// Nobody waits longer than this for a byte of a bulk transfer.
constexpr int kSilenceMs = 20'000;

// host:port, numeric or by name. `port` of 0 listens anywhere.
Result<UniqueFd> Listen(const std::string& address);
Result<uint16_t> PortOf(int fd);
Result<UniqueFd> Connect(const std::string& address);

// kUnavailable when the peer closes, is silent or the stop comes.
Status ReadAll(int fd, std::span<std::byte> out, std::stop_token stop);
// `lease`, if there is one, is used around each send; kUnavailable once it has ended.
Status WriteAll(int fd, std::vector<iovec> parts, std::stop_token stop, Lease* lease = nullptr);

}  // namespace tangram::mover
