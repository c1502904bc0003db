// The executor's calls to other agents.
#pragma once

#include <functional>
#include <set>
#include <stop_token>
#include <string>

#include "agent/base/status.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

// Calls return immediately, so that many peers are queried concurrently. Each callback runs once,
// in another thread, after a few seconds at most. kUnavailable: the peer is unreachable, or `stop`
// ended the call. A rejection keeps its code.
class Peers {
 public:
  using Answered = std::function<void(Result<v1::QueryResponse>)>;
  using Told = std::function<void(Status)>;

  virtual ~Peers() = default;
  virtual void Query(const std::string& agent, const v1::QueryRequest& request,
                     std::stop_token stop, Answered answered) = 0;
  virtual void Word(const std::string& agent, const v1::VoteRequest& request, std::stop_token stop,
                    Told told) = 0;
};

// Queries all these agents concurrently. `enough` receives the replies one at a time, in any order.
// Once it returns true, or at `stop`, the other calls are cancelled. Returns when no call is open.
void AskAll(Peers* peers, const std::set<std::string>& agents, const v1::QueryRequest& request,
            const std::stop_token& stop,
            const std::function<bool(const std::string& agent, const v1::QueryResponse&)>& enough);

}  // namespace tangram
