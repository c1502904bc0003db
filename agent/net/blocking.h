// Streams that are waited for: every wait ends when a stop is asked for, the other side is silent
// for too long, or it is gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/time_source.h"
#include "agent/net/socket.h"
#include "agent/net/stream.h"

namespace tangram::net {

// Nobody waits longer than this for the next byte.
constexpr auto kSilence = std::chrono::seconds(20);
// Until a connection stands and both sides know each other.
constexpr auto kConnect = std::chrono::seconds(5);

// All answer kUnavailable when the other side closes, is silent or the stop comes; Connect
// kUnauthenticated when it is not who it should be.
Result<std::unique_ptr<Stream>> Connect(const std::string& address,
                                        std::shared_ptr<Credentials> credentials,
                                        const std::stop_token& stop, const TcpLimits& limits = {});
Status ReadAll(Stream& stream, std::span<std::byte> out, const std::stop_token& stop,
               TimeSource& time = SteadyTime());
Status WriteAll(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop);

}  // namespace tangram::net
