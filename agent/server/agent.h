// One complete agent: memory, executor, engine socket, gRPC, metrics. Tests run several in one
// process.
#pragma once

#include <grpcpp/grpcpp.h>
#include <prometheus/exposer.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/server/config.h"
#include "agent/server/engine_server.h"
#include "agent/server/memory_host.h"
#include "agent/server/metrics.h"
#include "agent/server/peer_client.h"
#include "agent/server/presence.h"
#include "agent/server/services.h"
#include "agent/server/source_watch.h"

namespace tangram {

class Agent {
 public:
  // When it returns, everything listens and the ready file is written.
  static Result<std::unique_ptr<Agent>> Start(AgentConfig config, const MemoryFactory& memory);
  ~Agent();

  // In order: rejects new calls, detaches engines, frees memory last. Safe to call twice.
  void Stop();

  // An error: this process can no longer serve its memory. The caller must end the process
  // immediately, not by Stop: the next agent takes over from the engines, as after any death.
  Status Health() const { return memory_->CheckMemory(); }

  const std::string& address() const { return address_; }  // gRPC, host:port
  const std::vector<v1::Member>& members() const { return members_; }
  Executor* executor() { return executor_.get(); }

 private:
  explicit Agent(AgentConfig config) : config_(std::move(config)) {}
  Status Open(const MemoryFactory& memory);
  Status Listen();
  Status WriteReady();

  AgentConfig config_;
  std::string address_, data_address_, metrics_address_;
  std::vector<v1::Member> members_;
  // Destroyed from the bottom up.
  std::shared_ptr<PeerClient> peers_;
  std::shared_ptr<MemoryHost> memory_;  // keeps peers_
  std::unique_ptr<EngineServer> engines_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PresenceFile> presence_;
  std::unique_ptr<SourceWatch> source_;
  std::shared_ptr<AgentMetrics> metrics_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::unique_ptr<AgentService> agent_service_;
  std::unique_ptr<PeerService> peer_service_;
  std::unique_ptr<grpc::Server> server_;
  bool stopped_ = false;
};

}  // namespace tangram
