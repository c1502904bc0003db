// Rows to the ranks that have their experts, and the results back, over the mesh: a pair of
// exchanges of one step (agent/dispatch/exchange.h says what a pair is).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "agent/base/status.h"
#include "agent/dispatch/exchange.h"
#include "agent/engine/mesh/communicator.h"
#include "agent/engine/rows/mesh_links.h"

namespace tangram::engine {

// One thread. Memory is kept from call to call.
class ExpertRows {
 public:
  // What Combine takes and gives is of format.sums (kF32, kFixed), by rows.
  explicit ExpertRows(const dispatch::Format& format);

  // The layout from here on. What of a layer's alternatives is next is kept.
  // None: out of every world.
  void Enter(std::shared_ptr<const dispatch::Routes> routes);
  const dispatch::Routes& routes() const { return *routes_; }

  // `active` [ranks]: 0 for those that take no part, the same at all that do; empty: all do. Of an
  // expert's alternatives each row takes one in turn, of those whose ranks are active.
  // kUnavailable: a peer is gone (Communicator::Exchange), or an expert has no such alternative;
  // kInvalid: rows of an expert that is none; kInternal: a peer's message makes no sense here.
  // `sequence` and the one after it are those of the pair's two exchanges.
  Status Dispatch(Communicator& comm, uint64_t step, uint64_t sequence, uint32_t moe_ordinal,
                  const dispatch::Rows& rows, std::span<const uint8_t> active = {});
  const dispatch::Arrived& arrived() const { return arrived_; }
  // Rows of the last dispatch by expert [experts]: those of this rank, wherever they are computed;
  // those that are computed here, whosever they are.
  std::span<const uint32_t> routed() const { return exchange_.routed(handle_); }
  std::span<const uint32_t> executed() const { return exchange_.executed(handle_); }

  // `partials` [arrived().rows, hidden]; y [count, hidden] of the dispatch's rows is written.
  // Once after each Dispatch, else kInvalid. In fixed point sums are exact, and kInternal if one
  // wraps.
  Status Combine(const float* partials, float* y);
  Status Combine(const int64_t* partials, int64_t* y);

 private:
  Status CombineAny(const void* partials, void* y);
  Status Told(Status done, dispatch::Lane lane);

  MeshLinks links_;
  dispatch::Exchange exchange_;
  std::shared_ptr<const dispatch::Routes> routes_;
  dispatch::Handle handle_;
  dispatch::Arrived arrived_;
  bool open_ = false;
};

}  // namespace tangram::engine
