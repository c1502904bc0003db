// The memory of this process's ranks, and their mover to other agents: connects agent/store with
// the executor.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/layout/geometry.h"
#include "agent/server/config.h"
#include "agent/server/peer_client.h"
#include "agent/store/rank_memory.h"

namespace tangram {

class MemoryHost {
 public:
  virtual ~MemoryHost() = default;
  virtual const layout::GeometryView& geometry() const = 0;
  virtual const std::string& config_json() const = 0;
  // Whether pieces that no rank holds could still be read. Thread-safe; may block with the file
  // system.
  virtual Status CheckSource() const = 0;
  // An error: this process has lost memory (device::Platform::Health).
  virtual Status CheckMemory() const { return OkStatus(); }
  virtual RankMemory* memory(uint32_t device) = 0;
  virtual uint16_t data_port() const = 0;
  // The communication library for its bytes (PeerAddress.comm_library); empty: none.
  virtual std::string wire() const { return ""; }
  // The NVLink domain of its devices, as configured or from the driver; empty: none, or unknown.
  virtual std::string fabric() const { return ""; }
};

// Makes the host of a configuration. Members are by device.
using MemoryFactory = std::function<Result<std::unique_ptr<MemoryHost>>(
    const AgentConfig& config, const std::vector<v1::Member>& members, PeerClient* peers)>;

// The production host: reads the checkpoint's headers, makes the pools, listens for pulls.
Result<std::unique_ptr<MemoryHost>> MakeStoreHost(const AgentConfig& config,
                                                  const std::vector<v1::Member>& members,
                                                  PeerClient* peers);

}  // namespace tangram
