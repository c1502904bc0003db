// A simulated engine: the shipping EngineGate over the shipping control page. It steps as
// agent/engine does, without a model or KV.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "agent/gate/gate.h"
#include "agent/simulation/fibers.h"
#include "tangram/v1/engine.pb.h"

namespace tangram::simulation {

class World;
class Agent;

// The engine of one device: a sequence of processes.
class Engine {
 public:
  Engine(World* world, Agent* agent, uint32_t device);

  void Start();  // a process, which attaches when it can
  void Kill();   // ends with the turn; its agent is notified
  void Hang(Nanos until) { hung_until_ = until; }
  bool hangs() const;

  // A request of its agent; false: unreachable, or no reply in time.
  bool Ask(const std::function<Status(Engine&)>& what, Status* answer);
  void Tell(std::function<void(Engine&)> what);
  Status Prepared(const v1::EnginePrepare& prepare);
  void Aborted(uint64_t attempt);
  void Dismissed() { dismissed_ = true; }

  bool lives() const { return process_ != 0; }
  bool attached() const { return attached_; }
  uint64_t incarnation() const { return incarnation_; }
  bool stands() const { return stopped_; }
  const std::string& member() const { return member_; }
  const std::string& hash() const { return hash_; }
  uint64_t epoch() const { return layout_ == nullptr ? 0 : layout_->epoch(); }
  uint64_t steps() const { return steps_; }  // emitted steps in total
  int process() const { return process_; }
  Agent& agent() const { return *agent_; }
  uint32_t device() const { return device_; }

 private:
  using LayoutPtr = std::shared_ptr<const v1::Layout>;
  struct Preparation {
    uint64_t attempt = 0, from_epoch = 0;
    v1::FlipKind kind = v1::FLIP_KIND_UNSPECIFIED;
    LayoutPtr target;
    std::string hash;
    bool by_agents() const { return kind == v1::FLIP_KIND_FIRST || kind == v1::FLIP_KIND_REPAIR; }
  };
  // A member's message in an exchange.
  struct Said {
    GateVote word;
    bool pulled = true;
  };
  enum Exchange { kWords, kPulled };
  using Key = std::tuple<std::string, uint64_t, Exchange>;  // layout, step

  void Live();
  void Attach();
  void Breathe(Nanos pause);  // and stays unresponsive while it hangs
  void Serve();               // requests of its agent
  void Follow();              // flips of its agent
  void Join();
  void StandStill();
  void Step();
  void Flip();
  bool Commit();
  void Emit();
  void GiveUp(bool pulled, const char* why);
  void Enter(LayoutPtr layout, std::string hash);
  void Die();
  // False: the exchange broke.
  bool Trade(Exchange exchange, const Said& mine, std::map<std::string, Said>* all);
  bool Lost(const Engine* other, Nanos since) const;

  World* const world_;
  Agent* const agent_;
  const uint32_t device_;
  int process_ = 0;
  bool attached_ = false, dismissed_ = false, stopped_ = false, pending_ = false;
  uint64_t incarnation_ = 0, steps_ = 0, step_ = 0;
  uint64_t left_ = 0;  // epoch of its removed rank; the agent keeps it until the flip retires
  Nanos hung_until_ = 0;
  EngineGate gate_;
  std::string member_, hash_;
  LayoutPtr layout_;
  std::optional<Preparation> preparation_;
  std::deque<std::function<void(Engine&)>> asked_;
  std::map<Key, std::map<std::string, Said>> heard_;
  std::map<uint32_t, Nanos> apart_;  // ranks without a connection
};

}  // namespace tangram::simulation
