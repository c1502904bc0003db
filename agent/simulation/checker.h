// What must hold in every history (tests/model/README.md, "Claims and rules"; docs/architecture.md,
// 4.2), looked at from outside of the code that is played: what gates show, what engines emit, what
// calls are answered, what the records say, what memory holds.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/attempt/types.h"
#include "agent/gate/gate_page.h"
#include "agent/simulation/fibers.h"
#include "agent/simulation/records.h"
#include "agent/simulation/shown.h"

namespace tangram::simulation {

class World;
class Engine;
class Agent;

// How a rank came to flip.
enum class How : uint8_t { kEngine, kWords, kFence };

class Checker {
 public:
  explicit Checker(World* world) : shown(world), world_(world) {}

  // An attempt that is proposed: whom it binds.
  void Proposed(uint64_t attempt, attempt::Kind kind, uint64_t epoch, const std::string& hash,
                const Members& before, const Members& after);
  // The flip with this place in the run of that attempt, from 1: it binds the same members.
  void Follows(uint64_t first, size_t place, const std::string& hash);
  void AbortAnswered(uint64_t attempt, bool flipped);
  // An agent was told to go no further in a run, and has answered just now.
  void RunEnded(uint64_t first, uint64_t last, const Agent& agent);
  // Ranks of the world are let go of: what they were in is over for them.
  void Released() { ++releases_; }

  // Of engines.
  void Contributes(const Engine& engine, uint64_t step);
  void Emits(const Engine& engine, uint64_t step);
  void Told(const Engine& engine, const char* what, std::initializer_list<bool> how);

  // One failure, for which a fence may leave these pods out.
  void Failed(std::set<std::string> pods) { failures_.push_back(std::move(pods)); }

  // After each turn: what the gates show now.
  void Look();
  // At rest: nobody is at work on anything.
  void LookAtRest();
  void Wrong(const std::string& claim, const std::string& why);

  void Trace(const std::string& line);
  std::vector<std::string> wrong;  // claims that do not hold
  std::vector<std::string> trace;
  bool tracing = false;
  Shown shown;
  // What was reached, for whoever asks whether histories are worth anything.
  std::map<std::string, uint64_t> reached;

 private:
  struct Attempt {
    attempt::Kind kind = attempt::Kind::kUnspecified;
    uint64_t epoch = 0;
    std::string hash;
    Members before, after;
    bool back = false, went = false;  // an abort was answered so
    size_t fences = 0;                // written before it was proposed
    size_t releases = 0;
    bool follows = false;  // a flip of a run, and nobody has armed it
    bool by_agents() const {
      return kind == attempt::Kind::kFirst || kind == attempt::Kind::kRepair;
    }
  };
  struct Gate {
    GateState state = GateState::kIdle;
    uint64_t attempt = 0;
    bool stopped = false;
  };
  struct Stepping {
    Members members;
    std::set<std::string> said;
  };

  void Fenced(const Membership& was, const Membership& now);
  void WorldEnded();
  void Changed(Agent& agent, uint32_t device, const Gate& was, const Gate& now);
  void Flipped(Agent& agent, uint32_t device, uint64_t attempt, How how);
  void LookAtMemory(Agent& agent, uint32_t device, const Attempt& attempt);
  void LookAtEngine(const Engine& engine);  // it knows which member its rank is
  bool CanFollow(const std::string& member, uint64_t attempt, bool has_word) const;
  size_t GenerationOf(const std::string& hash) const;

  World* const world_;
  std::map<uint64_t, Attempt> attempts_;
  std::map<std::string, size_t> generations_;    // of a layout: fences before it was proposed
  std::vector<std::set<std::string>> failures_;  // by the pods that each may cost
  std::vector<Fence> fences_;
  std::map<std::pair<int, uint32_t>, Gate> gates_;  // by pod and device
  std::map<std::pair<std::string, uint64_t>, Stepping> steps_;
  Membership known_;  // the record, as it was seen last
  uint64_t version_ = 0;
  size_t releases_ = 0;
  size_t top_ = 0;  // the newest generation in which a step was complete
};

}  // namespace tangram::simulation
