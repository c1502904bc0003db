// What the ranks of a history showed, turn by turn, as tests/model/follow.pml reads it: the model
// must have a run that shows the same (tests/model/README.md, "Follow").
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/attempt/types.h"
#include "agent/simulation/fibers.h"
#include "agent/simulation/records.h"

namespace tangram::simulation {

class World;
class Agent;
class Engine;

// A history is cut into parts that are of the model's size: from a world at rest, of pods with a
// rank each, on to the first thing that the model has not (its README, "What is modelled").
class Shown {
 public:
  explicit Shown(World* world) : world_(world) {}

  void Proposed(attempt::Kind kind, uint64_t epoch, const Members& before, const Members& after);
  void Fenced(const Members& survivors);
  // Some rank may hear nothing of another, or a driver nothing of it, until then.
  void Disturbed(Nanos until);
  void Look();
  // A part is over: all there are so far, the last one, too.
  void End();

  bool wanted = false;
  std::vector<std::string> parts;

 private:
  static constexpr size_t kRanks = 3;  // of the model
  static constexpr uint32_t kUnseen = 255;
  using Line = std::array<uint32_t, kRanks + 1>;
  struct Rank {
    std::string member;
    Agent* agent = nullptr;
    uint64_t incarnation = 0;  // of its engine
    bool gone = false;         // dead, left out, or it left: what it does binds nobody
  };

  bool AtRest() const;
  void Begin();
  uint32_t MaskOf(const Members& members) const;
  bool Take(const Members& members);  // false: too many
  Line Now();
  uint32_t Of(size_t k);

  World* const world_;
  bool going_ = false;
  uint64_t base_ = 0;  // epoch
  std::vector<Rank> ranks_;
  std::array<uint32_t, kRanks> members_{};  // by epoch from base_ on; 0: none is proposed
  std::array<bool, kRanks> armed_{};        // a rank had the permit for it
  size_t attempts_ = 0;                     // that some rank had a permit for
  bool fresh_ = false;                      // the last one that was proposed is none of them yet
  size_t deaths_ = 0, fences_ = 0;
  uint32_t survivors_ = 0;
  bool disturbed_ = false;
  bool peopled_ = false;  // some member was seen
  Nanos until_ = 0;
  std::vector<Line> lines_;
};

}  // namespace tangram::simulation
