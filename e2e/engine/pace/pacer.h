// The clock of a rank: what a step of this batch in this layout lasts on the accelerators of a
// table, dilated, with noise and drift. The engine computes, then waits for the rest. Pure but for
// the drift, which goes by the clock that the caller names.
//
// Nobody has to agree on the time: it follows from the control exchange, which gives all ranks the
// batches of all, so each rank finds the same. Where they differ (clocks of drift, another
// --pace-noise), the slowest rank wins, as the next step's exchange waits for it.
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
  std::shared_ptr<const PaceTable> table;  // nullptr: steps last as long as they last
  double dilation = 1;                     // a second of the table lasts so many here
  double noise = 0;                        // relative deviation of a step
  double drift = 0;                        // relative: slower and faster by so much, slowly
  std::chrono::seconds drift_period{600};
  uint64_t seed = 0;       // of noise and drift; the same at all ranks of a world
  bool imbalance = false;  // of the experts, as measured; else as the table's routing has it
  // No step lasts longer: who is silent for so long counts as gone.
  std::chrono::milliseconds most{10000};
};

// A layout as the table has it: layers of one kind together.
struct PacedLayout {
  struct Part {
    PaceShape shape;
    const PaceStep* step = nullptr;
    std::vector<std::vector<uint32_t>> groups;  // of ranks that share requests
    double share = 0;                           // of the layers
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

  // `nearest`: what the table does not have is taken for what is nearest, and `told` says so (a
  // repair must not fail for it); else kInvalid names it.
  Result<PacedLayout> LayoutOf(const tg_maps& maps, std::span<const kv::LayerGroups> groups,
                               uint32_t experts, bool nearest, std::string* told) const;
  // What a step lasts: items by home. `epoch` and `step` draw the noise.
  Duration Of(const PacedLayout& layout, const std::vector<std::vector<PacedItem>>& homes,
              double imbalance, uint64_t epoch, uint64_t step,
              std::chrono::system_clock::time_point now) const;

 private:
  double Noise(uint64_t epoch, uint64_t step) const;
  double Drift(std::chrono::system_clock::time_point now) const;

  PaceOptions options_;
};

// What became of the waits so far. A bench that finds too many overruns has measured this machine,
// not the table.
struct PaceCounts {
  uint64_t steps = 0;     // paced ones
  uint64_t overruns = 0;  // of these: the work, or waking up, took longer than the step
  uint64_t cut = 0;       // of these: ended early, for a permit, a peer that went, or the end
  double seconds = 0;     // that they should have lasted, dilation included
};

}  // namespace tangram::engine
