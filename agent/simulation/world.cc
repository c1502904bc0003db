#include "agent/simulation/world.h"

#include <algorithm>
#include <utility>

namespace tangram::simulation {

World::World(Scheduler* scheduler, uint32_t ranks_per_pod)
    : checker(this), scheduler_(scheduler), ranks_per_pod_(ranks_per_pod) {
  scheduler_->after_turn = [this] { AfterTurn(); };
}

World::~World() {
  faulty = false;
  for (int process = kFirstDriver; process < kFirstDriver + next_process_; ++process) {
    if (scheduler_->Count(process) == 0) continue;
    scheduler_->Kill(process);
    (void)scheduler_->RunAlone(process, [&] { return scheduler_->Count(process) == 0; });
  }
  for (const auto& agent : agents) {
    if (agent->alive) agent->Die();
  }
  // Ends the fibers of dying engines and pending actions of Nature.
  const auto end = [&](int process) {
    scheduler_->Kill(process);
    (void)scheduler_->RunAlone(process, [&] { return scheduler_->Count(process) == 0; });
  };
  for (int process = kFirstEngine; process < next_process_; ++process) {
    if (scheduler_->Count(process) > 0) end(process);
  }
  end(kNature);
}

Agent& World::AddPod() {
  const auto number = static_cast<int>(agents.size());
  agents.push_back(std::make_unique<Agent>(this, number, ranks_per_pod_));
  for (const auto& engine : agents.back()->engines) engine->Start();
  return *agents.back();
}

void World::KillPod(Agent* agent) { dying_.push_back(agent); }

bool World::Cut(int pod, int other) const {
  return cuts_.contains({std::min(pod, other), std::max(pod, other)});
}

bool World::Hidden(int pod, int driver) const { return hidden_.contains({pod, driver}); }

void World::SetCut(int pod, int other, bool cut) {
  const std::pair pair(std::min(pod, other), std::max(pod, other));
  if (cut && pod != other) {
    cuts_.insert(pair);
  } else {
    cuts_.erase(pair);
  }
}

void World::SetHidden(int pod, int driver, bool hidden) {
  if (hidden) {
    hidden_.insert({pod, driver});
  } else {
    hidden_.erase({pod, driver});
  }
}

void World::Heal() {
  faulty = false;
  cuts_.clear();
  hidden_.clear();
}

bool World::Reaches(int from, const Agent& to) const {
  if (from >= kFirstDriver) return !Hidden(to.number, from);
  return agents[static_cast<size_t>(from)]->alive && !Cut(from, to.number);
}

Agent* World::AgentOf(const std::string& address) const {
  for (const auto& agent : agents) {
    if (agent->alive && agent->address == address) return agent.get();
  }
  return nullptr;
}

Agent* World::AgentOfMember(const std::string& member) const {
  for (const auto& agent : agents) {
    for (const auto& memory : agent->memories) {
      if (agent->alive && memory->store().member() == member) return agent.get();
    }
  }
  return nullptr;
}

Engine* World::EngineOfMember(const std::string& member) const {
  for (const auto& agent : agents) {
    for (const auto& engine : agent->engines) {
      if (agent->alive && engine->lives() && engine->member() == member) return engine.get();
    }
  }
  return nullptr;
}

void World::AfterTurn() {
  for (Agent* agent : std::exchange(dying_, {})) {
    if (agent->alive) agent->Die();
  }
  checker.Look();
}

}  // namespace tangram::simulation
