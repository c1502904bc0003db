// What steps were measured to take, by what they did: sums that a cost model is corrected with.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "e2e/engine/step/announced.h"
#include "tangram/v1/telemetry.pb.h"

namespace tangram::engine {

// One thread. Steps are counted by the binary order of their tokens, with and without prompts.
class StepMeter {
 public:
  // Another epoch: what its steps take says nothing about those before.
  void Enter(uint64_t epoch);
  // A step of the world, of the batches of all homes. Not `whole`: it was cut short, and says
  // nothing about how long such steps take.
  void Note(std::span<const Announced> homes, std::chrono::nanoseconds took, bool whole);
  void Fill(v1::RankTelemetry* out) const;

 private:
  struct Cell {
    uint64_t steps = 0, decode = 0, context = 0, prompt_tokens = 0, before = 0;
    double seconds = 0;
  };
  static constexpr size_t kOctaves = 32;

  uint64_t epoch_ = 0, steps_ = 0;
  double seconds_ = 0;
  std::array<std::array<Cell, kOctaves>, 2> cells_{};  // [with prompt tokens]
};

}  // namespace tangram::engine
