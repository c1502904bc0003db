// The memory of this process's ranks, and the mover between them and other agents: where
// agent/store meets the executor.
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
  // Whether pieces that nobody holds could still be read. Thread-safe; may hang with the file
  // system.
  virtual Status CheckSource() const = 0;
  // An error: memory is lost to this process (device::Platform::Health).
  virtual Status CheckMemory() const { return OkStatus(); }
  virtual RankMemory* memory(uint32_t device) = 0;
  virtual uint16_t data_port() const = 0;
  // By which communication library its bytes can be brought (PeerAddress.wire); empty: by none.
  virtual std::string wire() const { return ""; }
  // The NVLink domain of its devices, as configured or as the driver names it; empty: none, or not
  // known.
  virtual std::string fabric() const { return ""; }
};

// Makes the host of a configuration. Members are by device.
using MemoryFactory = std::function<Result<std::unique_ptr<MemoryHost>>(
    const AgentConfig& config, const std::vector<v1::Member>& members, PeerClient* peers)>;

// Production's: reads the checkpoint's headers, makes the pools, listens for pulls.
Result<std::unique_ptr<MemoryHost>> MakeStoreHost(const AgentConfig& config,
                                                  const std::vector<v1::Member>& members,
                                                  PeerClient* peers);

}  // namespace tangram
