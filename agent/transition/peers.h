// What the executor asks other agents.
#pragma once

#include <functional>
#include <set>
#include <stop_token>
#include <string>

#include "agent/base/status.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

// Calls return at once, so that many peers are asked at the same time; each is answered once, in
// another thread, after a few seconds at most. kUnavailable: the peer is away, or `stop` ended the
// call. A refusal keeps its code.
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

// Asks all these agents at once. `enough` sees the answers, one at a time and in no order; when it
// has said true, or at `stop`, the others are let go. Returns when no call is under way.
void AskAll(Peers* peers, const std::set<std::string>& agents, const v1::QueryRequest& request,
            const std::stop_token& stop,
            const std::function<bool(const std::string& agent, const v1::QueryResponse&)>& enough);

}  // namespace tangram
