// The executor's interface to the attached engines, one per device.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/store/rank_memory.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

struct EngineInfo {
  bool attached = false;
  uint64_t incarnation = 0;  // counts the attaches of this device
  v1::EngineCapabilities capabilities;
  std::string endpoint, frontend;
  uint32_t kv_block_tokens = 0;
};

// The engine's library replies to calls. They block for a bounded time and may be made from any
// thread. kUnavailable: no engine, it detached, it timed out, or `stop`. kEngine: it declined.
class Engines {
 public:
  virtual ~Engines() = default;
  virtual EngineInfo Info(uint32_t device) = 0;
  virtual Status Prepare(uint32_t device, const v1::EnginePrepare& prepare,
                         std::stop_token stop) = 0;
  virtual Status Map(uint32_t device, const v1::Header& header, EngineMappings mappings,
                     std::stop_token stop) = 0;
  virtual Status Unmap(uint32_t device, const v1::EngineUnmap& unmap) = 0;
  virtual void Abort(uint32_t device, const v1::EngineAbort& abort) = 0;  // no reply
  // Evicts the engine of a released rank: sends the reason and disconnects. Waits, for a bounded
  // time, until the engine has detached.
  virtual void Dismiss(uint32_t device, const std::string& reason) = 0;
};

}  // namespace tangram
