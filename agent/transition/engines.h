// What the executor needs of the engines that are attached to this agent, one per device.
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

// Calls are answered by the engine's library; they block, bounded, and may be made from
// any thread. kUnavailable: no engine, it left, it did not answer in time, or nobody wants the
// answer any more (`stop`). kEngine: it said no.
class Engines {
 public:
  virtual ~Engines() = default;
  virtual EngineInfo Info(uint32_t device) = 0;
  virtual Status Prepare(uint32_t device, const v1::EnginePrepare& prepare,
                         std::stop_token stop) = 0;
  virtual Status Map(uint32_t device, const v1::Header& header, EngineMappings mappings,
                     std::stop_token stop) = 0;
  virtual Status Unmap(uint32_t device, const v1::EngineUnmap& unmap) = 0;
  virtual void Abort(uint32_t device, const v1::EngineAbort& abort) = 0;  // no answer
  // The engine's rank is no member any more: it is told and hung up on. Waits, bounded, until it
  // is gone.
  virtual void Dismiss(uint32_t device, const std::string& reason) = 0;
};

}  // namespace tangram
