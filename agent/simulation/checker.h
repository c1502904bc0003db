// The claims that every history must fulfil (tests/model/README.md, "Claims and rules";
// docs/architecture.md, 4.2). They are checked from outside: states of gates, steps of engines,
// replies to calls, records, memory.
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

// The way in which a rank flipped.
enum class How : uint8_t { kEngine, kWords, kFence };

class Checker {
 public:
  explicit Checker(World* world) : shown(world), world_(world) {}

  // An attempt is proposed, with the members that it binds.
  void Proposed(uint64_t attempt, attempt::Kind kind, uint64_t epoch, const std::string& hash,
                const Members& before, const Members& after);
  // Flip number `place` (from 1) of that attempt's run; it binds the same members.
  void Follows(uint64_t first, size_t place, const std::string& hash);
  void AbortAnswered(uint64_t attempt, bool flipped);
  // An agent has just replied to the abort of a run.
  void RunEnded(uint64_t first, uint64_t last, const Agent& agent);
  // Ranks of the world are released, which ends their attempts.
  void Released() { ++releases_; }

  // Called by engines.
  void Contributes(const Engine& engine, uint64_t step);
  void Emits(const Engine& engine, uint64_t step);
  void Told(const Engine& engine, const char* what, std::initializer_list<bool> how);

  // One failure, because of which a fence may remove these pods.
  void Failed(std::set<std::string> pods) { failures_.push_back(std::move(pods)); }

  // After each turn: checks the states of the gates.
  void Look();
  // At rest: no work is in progress.
  void LookAtRest();
  void Wrong(const std::string& claim, const std::string& why);

  void Trace(const std::string& line);
  std::vector<std::string> wrong;  // violated claims
  std::vector<std::string> trace;
  bool tracing = false;
  Shown shown;
  // Counts of reached situations, so that a test can require them.
  std::map<std::string, uint64_t> reached;

 private:
  struct Attempt {
    attempt::Kind kind = attempt::Kind::kUnspecified;
    uint64_t epoch = 0;
    std::string hash;
    Members before, after;
    bool back = false, went = false;  // replies of aborts
    size_t fences = 0;                // number before its proposal
    size_t releases = 0;
    bool follows = false;  // a flip of a run that no rank has armed
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
  std::vector<std::set<std::string>> failures_;  // the pods that each failure may remove
  std::vector<Fence> fences_;
  std::map<std::pair<int, uint32_t>, Gate> gates_;  // by pod and device
  std::map<std::pair<std::string, uint64_t>, Stepping> steps_;
  Membership known_;  // the last seen record
  uint64_t version_ = 0;
  size_t releases_ = 0;
  size_t top_ = 0;  // the newest generation with a complete step
};

}  // namespace tangram::simulation
