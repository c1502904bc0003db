// What the executor asks other agents.
#pragma once

#include <stop_token>

#include "agent/base/status.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

// Blocking calls with a deadline of a few seconds, from any thread. kUnavailable: the peer is
// away, or `stop` ended the call. A refusal keeps its code.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual Result<v1::QueryResponse> Query(const std::string& agent, const v1::QueryRequest& request,
                                          std::stop_token stop) = 0;
  virtual Status Word(const std::string& agent, const v1::WordRequest& request,
                      std::stop_token stop) = 0;
};

}  // namespace tangram
