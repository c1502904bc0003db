// Measured durations of steps, by the work they did: sums that correct a cost model.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "e2e/engine/step/announced.h"
#include "tangram/v1/telemetry.pb.h"

namespace tangram::engine {

// Not thread-safe. Steps are counted by the binary order of their tokens, with and without prompts.
class StepMeter {
 public:
  // Starts a new epoch: durations of its steps say nothing about earlier ones.
  void Enter(uint64_t epoch);
  // Adds a step of the world, given the batches of all homes. Not `whole`: the step was cut short,
  // so its duration does not count.
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
