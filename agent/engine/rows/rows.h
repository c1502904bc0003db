// Dispatches rows to the ranks that have their experts, and combines the results, over the mesh: a
// pair of exchanges of one step (agent/dispatch/exchange.h defines a pair).
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

// One thread. Memory is reused between calls.
class ExpertRows {
 public:
  // Combine takes and returns numbers of type format.sums (kF32, kFixed), by rows.
  explicit ExpertRows(const dispatch::Format& format);

  // Sets the layout from here on. Each expert's next replica is kept. nullptr: this rank is in no
  // world.
  void Enter(std::shared_ptr<const dispatch::Routes> routes);
  const dispatch::Routes& routes() const { return *routes_; }

  // `active` [ranks]: 0 for ranks that take no part, the same at all that do; empty: all do. Rows
  // of an expert take its replicas on active ranks in turn. kUnavailable: a peer is gone
  // (Communicator::Exchange), or an expert has no such replica; kInvalid: rows name an unknown
  // expert; kInternal: a peer's message is malformed. `sequence` and the next one number the pair's
  // two exchanges.
  Status Dispatch(Communicator& comm, uint64_t step, uint64_t sequence, uint32_t moe_ordinal,
                  const dispatch::Rows& rows, std::span<const uint8_t> active = {});
  const dispatch::Arrived& arrived() const { return arrived_; }
  // Rows of the last dispatch by expert [experts]: the rows of this rank, on any rank; the rows
  // that this rank computes, of any rank.
  std::span<const uint32_t> routed() const { return exchange_.routed(handle_); }
  std::span<const uint32_t> executed() const { return exchange_.executed(handle_); }

  // `partials` [arrived().rows, hidden]; writes y [count, hidden] for the dispatch's rows. One call
  // after each Dispatch, else kInvalid. In fixed point sums are exact; kInternal if one wraps.
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
