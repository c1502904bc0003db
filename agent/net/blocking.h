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

#include "agent/base/limits.h"
#include "agent/base/time_source.h"
#include "agent/net/socket.h"
#include "agent/net/stream.h"

namespace tangram::net {

// Of one connection.
struct WaitLimits {
  // Until it is made and both sides are authenticated.
  std::chrono::milliseconds connect = limits::kDataConnect;
  // For the next byte, or until one more can be sent.
  std::chrono::milliseconds silence = limits::kDataSilence;
};

// All answer kUnavailable when the other side closes, is silent or the stop comes; Connect
// kUnauthenticated when it is not who it should be. Time counts only while this process runs
// (base/wait.h). A stop ends a wait within limits::kStopLook. `silence` stays with the stream.
Result<std::unique_ptr<Stream>> Connect(const std::string& address,
                                        std::shared_ptr<Credentials> credentials,
                                        const std::stop_token& stop, const WaitLimits& limits = {},
                                        const TcpLimits& tcp = {});
Status ReadAll(Stream& stream, std::span<std::byte> out, const std::stop_token& stop,
               TimeSource& time = SteadyTime());
Status WriteAll(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop);

}  // namespace tangram::net
