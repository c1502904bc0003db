// The gRPC services over the executor: authorization, and conversion of Status to gRPC status. Uses
// the synchronous API: driver calls block for seconds, and gRPC gives each its own thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>

#include "agent/transition/executor.h"
#include "tangram/v1/agent.grpc.pb.h"

namespace tangram {

// The caller that a client certificate names: "driver", "agent/<pod>", ... of this world; empty for
// any other certificate.
std::string CallerOf(const grpc::ServerContext& context, const std::string& world);

class AgentService final : public v1::Agent::Service {
 public:
  AgentService(std::string world, Executor* executor)
      : world_(std::move(world)), executor_(executor) {}
  // Ends the watches, so that the server can shut down.
  void Stop() { stopping_ = true; }

  grpc::Status Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                       v1::PrepareResponse* response) override;
  grpc::Status Stage(grpc::ServerContext* context, const v1::StageRequest* request,
                     v1::StageResponse* response) override;
  grpc::Status Permit(grpc::ServerContext* context, const v1::PermitRequest* request,
                      v1::PermitResponse* response) override;
  grpc::Status Abort(grpc::ServerContext* context, const v1::AbortRequest* request,
                     v1::AbortResponse* response) override;
  grpc::Status Retire(grpc::ServerContext* context, const v1::RetireRequest* request,
                      v1::RetireResponse* response) override;
  grpc::Status Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                       v1::ResolveResponse* response) override;
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override;
  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest* request,
                      v1::StatusResponse* response) override;
  grpc::Status ExpertLoad(grpc::ServerContext* context, const v1::ExpertLoadRequest* request,
                          v1::ExpertLoadResponse* response) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override;

 private:
  grpc::Status Allow(const grpc::ServerContext& context) const;
  grpc::Status Answer(grpc::ServerContext* context, const char* call,
                      const tangram::Status& status);
  grpc::Status CheckWorld(grpc::ServerContext* context, const std::string& world);

  const std::string world_;
  Executor* const executor_;
  std::atomic<bool> stopping_{false};
};

class PeerService final : public v1::Peer::Service {
 public:
  PeerService(std::string world, Executor* executor)
      : world_(std::move(world)), executor_(executor) {}

  grpc::Status Query(grpc::ServerContext* context, const v1::QueryRequest* request,
                     v1::QueryResponse* response) override;
  grpc::Status Vote(grpc::ServerContext* context, const v1::VoteRequest* request,
                    v1::VoteResponse* response) override;
  grpc::Status OpenPull(grpc::ServerContext* context, const v1::OpenPullRequest* request,
                        v1::OpenPullResponse* response) override;

 private:
  // The caller's pod, or a rejection.
  grpc::Status Allow(const grpc::ServerContext& context, std::string* pod) const;

  const std::string world_;
  Executor* const executor_;
};

}  // namespace tangram
