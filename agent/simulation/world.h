// A simulated world: agents, engines, drivers, the API server's records, a network that loses and
// delays messages, and faults (README.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/simulation/agent.h"
#include "agent/simulation/checker.h"
#include "agent/simulation/engine.h"
#include "agent/simulation/fibers.h"
#include "agent/simulation/records.h"

namespace tangram::simulation {

// Process numbers: a pod's own number; engines and drivers have others.
inline constexpr int kNature = -1;
inline constexpr int kFirstEngine = 1'000;
inline constexpr int kFirstDriver = 100'000;

class World {
 public:
  World(Scheduler* scheduler, uint32_t ranks_per_pod);
  ~World();  // ends all processes

  uint32_t ranks_per_pod() const { return ranks_per_pod_; }
  Scheduler& time() { return *scheduler_; }
  Dice& dice() { return scheduler_->dice(); }

  Agent& AddPod();
  void KillPod(Agent* agent);  // from Nature; at the end of the turn
  // True with a chance of one in `one_in`, while faults are on.
  bool Fails(uint64_t one_in) { return faulty && dice().OneIn(one_in); }

  // Connections between engines and agents of two pods, and between a driver and a pod.
  bool Cut(int pod, int other) const;
  bool Hidden(int pod, int driver) const;
  void SetCut(int pod, int other, bool cut);
  void SetHidden(int pod, int driver, bool hidden);
  void Heal();

  // A call over the network from a process to an agent, in a fiber of the caller. The request or
  // the reply may be lost.
  template <typename Answer>
  Answer Call(int from, Agent* to, const char* name, Nanos limit,
              std::function<Answer(Executor&)> call, Answer away);

  Agent* AgentOf(const std::string& address) const;
  Agent* AgentOfMember(const std::string& member) const;  // the living agent that has it now
  Engine* EngineOfMember(const std::string& member) const;
  int NextProcess() { return next_process_++; }

  // After each turn: applies pending deaths, then checks.
  void AfterTurn();

  bool faulty = true;
  std::vector<std::unique_ptr<Agent>> agents;  // also the dead
  Records records;
  Checker checker;

 private:
  bool Reaches(int from, const Agent& to) const;

  Scheduler* const scheduler_;
  const uint32_t ranks_per_pod_;
  int next_process_ = kFirstEngine;
  std::set<std::pair<int, int>> cuts_, hidden_;
  std::vector<Agent*> dying_;
};

template <typename Answer>
Answer World::Call(int from, Agent* to, const char* name, Nanos limit,
                   std::function<Answer(Executor&)> call, Answer away) {
  struct Line {
    std::optional<Answer> answer;
    bool lost = false;
  };
  const auto delay = [this] {
    return dice().OneIn(30) ? dice().Between(0, 400 * kMillisecond)
                            : dice().Between(0, 5 * kMillisecond);
  };
  const Nanos until = time().now() + limit;
  time().Sleep(delay());
  const bool local = from == to->number;  // an engine's own agent: a socket in the pod
  if (!to->alive || !Reaches(from, *to) || (!local && Fails(80))) {
    time().Sleep(dice().OneIn(3) ? limit : 2 * kMillisecond);  // timeout, or a broken connection
    return away;
  }
  auto line = std::make_shared<Line>();
  const bool reply_lost = !local && Fails(80);
  ++to->handlers;
  time().Spawn(to->number, name, [this, to, line, call = std::move(call)] {
    Answer answer = call(*to->executor);
    --to->handlers;
    time().Wake(&to->handlers);
    if (!to->alive) return;  // the request is lost
    line->answer.emplace(std::move(answer));
    time().Wake(line.get());
  });
  while (!line->answer && to->alive && time().now() < until) {
    (void)time().Wait(line.get(), std::min(until, time().now() + 100 * kMillisecond));
  }
  time().Sleep(delay());
  if (!line->answer || reply_lost || !Reaches(from, *to)) return away;
  return std::move(*line->answer);
}

}  // namespace tangram::simulation
