// Routes replies to gateways, connected or not. A request may arrive by a flip before its gateway
// has opened a session with this rank. Its replies wait, up to a bound; beyond it the gateway is
// taken to be gone and its requests are cancelled. A gateway is forgotten, with its replies, when
// it has been away for long and its requests have all ended. Names are those of pods, and do not
// recur after a rollout.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "agent/base/time_source.h"
#include "agent/engine/frontend/inbox.h"
#include "agent/engine/frontend/sink.h"

namespace tangram::engine {

// The destination of a gateway's replies. Called under the hub's lock: must not block or call back.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void Push(v1::ServeReply reply) = 0;
  // Takes the replies that were pushed and not sent.
  virtual std::deque<v1::ServeReply> TakeUnsent() = 0;
};

class Hub final : public Sink {
 public:
  // Much longer than a live gateway takes to reconnect.
  static constexpr std::chrono::minutes kForget{10};

  explicit Hub(Inbox* inbox, size_t max_backlog = 65536, TimeSource& time = SteadyTime())
      : inbox_(inbox), max_backlog_(max_backlog), time_(time) {}

  // From now on the gateway's replies go to `outlet`, first the waiting ones. An older outlet is
  // forgotten.
  void Open(const std::string& gateway, std::shared_ptr<Outlet> outlet);
  // The outlet has ended; its unsent replies wait for the next one. (A reply whose sending failed
  // may arrive twice: gateways detect that by the position.)
  void Close(const std::string& gateway, Outlet* outlet);
  // The gateway does not read its replies. An outlet calls this from within Push.
  void GiveUp(const std::string& gateway, const std::deque<v1::ServeReply>& unsent);

  void Emit(const std::string& gateway, v1::Token token) override;
  void Refuse(const std::string& gateway, v1::Refused refused) override;
  void SetWorld(v1::World world, const std::string& self,
                std::map<std::string, v1::Roster> rosters) override;
  void SetLoad(v1::Load load) override;  // several times a second; drops stale gateways

  size_t gateways();  // known gateways

 private:
  struct Gateway {
    std::shared_ptr<Outlet> outlet;
    std::deque<v1::ServeReply> backlog;
    TimeSource::TimePoint away;  // without an outlet since then
  };

  Gateway& Of(const std::string& gateway);
  void ForgetGone();
  void TellWorld(const std::string& gateway, Outlet* outlet);
  void Send(const std::string& gateway, v1::ServeReply reply);
  void Keep(const std::string& name, Gateway& gateway, v1::ServeReply reply);
  void CancelAll(const std::string& gateway, const std::deque<v1::ServeReply>& replies,
                 std::deque<v1::ServeReply>* instead);

  Inbox* inbox_;
  const size_t max_backlog_;
  TimeSource& time_;
  std::mutex mu_;
  std::map<std::string, Gateway> gateways_;
  std::optional<v1::ServeReply> world_, load_;
  std::string self_;
  std::map<std::string, v1::Roster> rosters_;  // of the epoch of world_
};

}  // namespace tangram::engine
