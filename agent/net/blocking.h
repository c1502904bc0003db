// Blocking operations on streams. Every wait ends on a stop request, a peer that is silent for too
// long, or a closed connection.
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

// Limits of one connection.
struct WaitLimits {
  // Until it is connected and both sides are authenticated.
  std::chrono::milliseconds connect = limits::kDataConnect;
  // Until the next byte arrives or one more can be sent.
  std::chrono::milliseconds silence = limits::kDataSilence;
};

// All return kUnavailable if the peer closes, is silent for too long, or on a stop. Connect returns
// kUnauthenticated if the peer has the wrong identity. Time counts only while this process runs
// (base/wait.h). A stop ends a wait within limits::kStopLook. `silence` stays with the stream.
Result<std::unique_ptr<Stream>> Connect(const std::string& address,
                                        std::shared_ptr<Credentials> credentials,
                                        const std::stop_token& stop, const WaitLimits& limits = {},
                                        const TcpLimits& tcp = {});
Status ReadAll(Stream& stream, std::span<std::byte> out, const std::stop_token& stop,
               TimeSource& time = SteadyTime());
Status WriteAll(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop);

}  // namespace tangram::net
