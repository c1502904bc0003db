// Duration of a step on measured accelerators: the compiled table of `tangram pace-table`
// (operator/pkg/kernels, compiled.go), evaluated as in that package. tests/golden/pace.json checks
// that both give the same seconds. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/status.h"

namespace tangram::engine {

// A world whose layers all have the same shape (docs/architecture.md, section 2).
struct PaceShape {
  uint32_t ranks = 0;
  uint32_t expert_group = 0;     // g
  uint32_t attention_group = 0;  // t
  auto operator<=>(const PaceShape&) const = default;
};
std::string ToString(const PaceShape& shape);

// Load of one attention group in a step.
struct PaceLoad {
  uint64_t decode = 0;   // requests that get one token
  uint64_t context = 0;  // context tokens of these requests, summed
  uint64_t prefill = 0;  // prompt tokens
  double chunks = 0;     // seconds: the sum of PaceStep::Chunk of the prompts' chunks
};

// Values on a grid over a whole number: 8 points per octave, linear in between.
using PaceGrid = std::vector<double>;

class PaceStep {
 public:
  // Seconds of attention, over all layers, of a prompt's positions from .. to - 1.
  double Chunk(uint64_t from, uint64_t to) const;
  // Seconds of a step. `imbalance`: load of the busiest rank's experts over the mean, beyond the
  // skew of the table's routing.
  double Seconds(std::span<const PaceLoad> loads, double imbalance) const;

 private:
  friend class PaceTable;
  struct Group {
    PaceGrid dense, context;           // by tokens of a group; by context of one prompt
    std::vector<PaceGrid> generation;  // by requests, over the mean context
  };
  double Own(const PaceLoad& load) const;
  double Decode(uint64_t requests, uint64_t context) const;

  PaceShape shape_;
  double layers_ = 0;
  PaceGrid moe_, around_;  // seconds of a layer by tokens of all ranks
  std::shared_ptr<const Group> group_;
};

class PaceTable {
 public:
  // kInvalid: the file cannot be read, or names the wrong field.
  static Result<PaceTable> Open(const std::string& path);
  static Result<PaceTable> Parse(const std::string& json);

  const std::string& name() const { return name_; }  // model, engine and routing, for people
  // nullptr: not in the table.
  const PaceStep* Find(const PaceShape& shape) const;
  // The step with the same number of ranks and the closest groups (in powers of two); nullptr: the
  // table has no step with this number of ranks.
  const PaceStep* Nearest(const PaceShape& shape, PaceShape* is) const;

 private:
  std::string name_;
  std::map<PaceShape, PaceStep> steps_;
};

}  // namespace tangram::engine
