// Which rows go to whom: of each expert's alternatives (redundant copies) whose ranks all take part
// this rank's own, or else the next in turn. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/dispatch/routes.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch {

constexpr int32_t kNone = -1;  // in choices: not here

// What a rank brings. `x` [count, hidden] of the format's x; `experts`, `weights` [count, top_k],
// experts of the layer.
struct Rows {
  uint32_t count = 0;
  const void* x = nullptr;
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
};

// What goes to one rank: each row once, however many of its experts are there.
struct Outgoing {
  std::vector<uint32_t> rows;    // of this rank, ascending
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
  std::vector<uint32_t> routed;        // [experts]: rows of this rank, wherever they go
  std::vector<Contribution> homeless;  // no alternative without a rank that is left out
};

// `turns` [experts]: rows for each so far, wherever they went; they go on. `active` [ranks], 0:
// left out; empty: none is. kInvalid: rows of an expert that is none. Memory of `plan` is kept.
Status Choose(const Format& format, const LayerRoutes& layer, const Rows& rows,
              std::span<const uint8_t> active, uint32_t ranks, std::span<uint32_t> turns,
              Plan* plan);

}  // namespace tangram::dispatch
