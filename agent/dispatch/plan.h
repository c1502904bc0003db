// The destination of each row: among an expert's replicas whose ranks all take part, this rank's
// own, or else the next in turn. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/dispatch/routes.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch {

constexpr int32_t kNone = -1;  // in choices: not here

// A rank's input. `x` [count, hidden] of the format's x; `experts`, `weights` [count, top_k],
// experts of the layer.
struct Rows {
  uint32_t count = 0;
  const void* x = nullptr;
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
};

// The rows for one rank: each row once, even if several of its experts are there.
struct Outgoing {
  std::vector<uint32_t> rows;    // row numbers of this rank, ascending
  std::vector<int32_t> choices;  // [rows, top_k], of the layer; kNone: not there
};

// The k-th expert of a row.
struct Contribution {
  uint32_t row = 0, k = 0;
  int32_t expert = 0;
  bool operator==(const Contribution&) const = default;
  auto operator<=>(const Contribution&) const = default;
};

struct Plan {
  std::vector<Outgoing> to;            // [ranks]
  std::vector<uint32_t> routed;        // [experts]: rows of this rank, for any destination
  std::vector<Contribution> homeless;  // choices without an available replica
};

// `turns` [experts]: rows for each expert so far, for any destination; they are advanced. `active`
// [ranks], 0: takes no part; empty: all take part. kInvalid: rows of a nonexistent expert. Reuses
// the memory of `plan`.
Status Choose(const Format& format, const LayerRoutes& layer, const Rows& rows,
              std::span<const uint8_t> active, uint32_t ranks, std::span<uint32_t> turns,
              Plan* plan);

}  // namespace tangram::dispatch
