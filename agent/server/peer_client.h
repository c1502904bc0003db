// Calls to other agents over mTLS; one channel per address, shared by all threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include "agent/server/config.h"
#include "agent/transition/peers.h"
#include "tangram/v1/agent.grpc.pb.h"

namespace tangram {

class PeerClient : public Peers {
 public:
  PeerClient(const std::string& world, std::shared_ptr<grpc::ChannelCredentials> credentials);

  void Query(const std::string& agent, const v1::QueryRequest& request, std::stop_token stop,
             Answered answered) override;
  void Word(const std::string& agent, const v1::VoteRequest& request, std::stop_token stop,
            Told told) override;
  // As mover::Opener.
  Result<v1::OpenPullResponse> OpenPull(const std::string& agent,
                                        const v1::OpenPullRequest& request,
                                        const std::stop_token& stop);
  size_t channels();  // for tests

 private:
  std::unique_ptr<v1::Peer::Stub> StubOf(const std::string& agent);

  const std::string name_;  // in every agent's certificate
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace tangram
