// The clock of a rank: the duration of a step of this batch in this layout on the accelerators of a
// table, dilated, with noise and drift. The engine computes, then waits for the rest. Pure, except
// for the drift, which depends on the time that the caller passes.
//
// Ranks need no agreement on the duration: the control exchange gives all ranks all batches, so
// each computes the same. Where durations differ (drift of clocks, another --pace-noise), the
// slowest rank decides, because the next step's exchange waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/client/include/tangram/client.h"
#include "agent/kv/plan.h"
#include "e2e/engine/pace/table.h"

namespace tangram::engine {

struct PaceOptions {
  std::shared_ptr<const PaceTable> table;  // nullptr: steps are not paced
  double dilation = 1;                     // duration here of a second of the table
  double noise = 0;                        // relative deviation of a step
  double drift = 0;                        // relative amplitude of a slow change
  std::chrono::seconds drift_period{600};
  uint64_t seed = 0;       // of noise and drift; the same at all ranks of a world
  bool imbalance = false;  // of the experts, as measured; else from the table's routing
  // Maximum duration of a step: a rank that is silent for this long counts as dead.
  std::chrono::milliseconds most{10000};
};

// A layout in the table's terms: layers of one kind together.
struct PacedLayout {
  struct Part {
    PaceShape shape;
    const PaceStep* step = nullptr;
    std::vector<std::vector<uint32_t>> groups;  // of ranks that share requests
    double share = 0;                           // of all layers
  };
  std::vector<Part> parts;
};

// Positions that a home computes of one request: [start, start + count). One is a decode.
struct PacedItem {
  uint32_t start = 0, count = 0;
};

class Pacer {
 public:
  using Duration = std::chrono::nanoseconds;

  explicit Pacer(PaceOptions options) : options_(std::move(options)) {}

  const PaceOptions& options() const { return options_; }

  // `nearest`: a shape that is not in the table is replaced by the nearest one, reported in `told`
  // (a repair must not fail for it). Otherwise kInvalid names the shape.
  Result<PacedLayout> LayoutOf(const tg_maps& maps, std::span<const kv::LayerGroups> groups,
                               uint32_t experts, bool nearest, std::string* told) const;
  // Duration of a step with these items by home. `epoch` and `step` seed the noise.
  Duration Of(const PacedLayout& layout, const std::vector<std::vector<PacedItem>>& homes,
              double imbalance, uint64_t epoch, uint64_t step,
              std::chrono::system_clock::time_point now) const;

 private:
  double Noise(uint64_t epoch, uint64_t step) const;
  double Drift(std::chrono::system_clock::time_point now) const;

  PaceOptions options_;
};

// Outcome of the waits so far. A bench with too many overruns has measured this machine, not the
// table.
struct PaceCounts {
  uint64_t steps = 0;     // paced ones
  uint64_t overruns = 0;  // of these: the work, or waking up, took longer than the step
  uint64_t cut = 0;       // of these: ended early, for a permit, a lost peer, or shutdown
  double seconds = 0;     // their target duration, dilation included
};

}  // namespace tangram::engine
