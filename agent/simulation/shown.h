// States that the ranks of a history showed, turn by turn, in the format of tests/model/follow.pml.
// The model must have a run that shows the same (tests/model/README.md, "Follow").
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

// Cuts a history into parts of the model's size. A part begins at a world at rest with one rank per
// pod, and ends at the first event that the model lacks (its README, "What is modelled").
class Shown {
 public:
  explicit Shown(World* world) : world_(world) {}

  void Proposed(attempt::Kind kind, uint64_t epoch, const Members& before, const Members& after);
  void Fenced(const Members& survivors);
  // Until then, some rank may receive nothing from another, or a driver nothing from it.
  void Disturbed(Nanos until);
  void Look();
  // Ends all parts so far, including the last.
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
    bool gone = false;         // dead, removed, or it left: its actions bind no rank
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
  std::array<uint32_t, kRanks> members_{};  // by epoch from base_ on; 0: not proposed
  std::array<bool, kRanks> armed_{};        // a rank had its permit
  size_t attempts_ = 0;                     // attempts that were permitted to some rank
  bool fresh_ = false;                      // the last proposal is not counted in attempts_ yet
  size_t deaths_ = 0, fences_ = 0;
  uint32_t survivors_ = 0;
  bool disturbed_ = false;
  bool peopled_ = false;  // some member was seen
  Nanos until_ = 0;
  std::vector<Line> lines_;
};

}  // namespace tangram::simulation
