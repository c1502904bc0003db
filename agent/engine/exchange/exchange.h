// Rows to the ranks that have their experts, and the results back: dispatch and combine.
//
// Of a step's layer every rank calls Dispatch with its own rows (also with none), computes what
// came, and calls Combine with the results. A row goes once to each rank that has something of its
// experts. What a rank gets back is summed in order of ranks, whatever came first, so that a step
// done again in the same layout has the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/engine/exchange/message.h"
#include "agent/engine/exchange/routes.h"
#include "agent/engine/mesh/communicator.h"

namespace tangram::engine {

// What a rank brings. `x` [count, hidden] of the exchange's element; `experts`, `weights`
// [count, top_k], experts of the layer.
struct Rows {
  uint32_t count = 0;
  const void* x = nullptr;
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
};

// What is to be computed here, of all ranks in their order: result[i] is the sum, over k and over
// the pieces here of choices[i][k] (LayerRoutes::PiecesOf; none for RowMessage::kNone), of
// weights[i][k] * expert(x[i]).
struct Arrived {
  uint32_t rows = 0;
  std::vector<float> x;          // [rows, hidden]
  std::vector<int32_t> choices;  // [rows, top_k]
  std::vector<float> weights;    // [rows, top_k]
};

// One thread. Memory is kept from call to call.
class ExpertExchange {
 public:
  ExpertExchange(RowFormat format, uint32_t experts) : format_(format), experts_(experts) {}

  // The layout from here on. What of a layer's alternatives is next is kept.
  // None: out of every world.
  void Enter(std::shared_ptr<const Routes> routes);
  const Routes& routes() const { return *routes_; }

  // `active` [ranks]: 0 for those that take no part, the same at all that do; empty: all do. Of an
  // expert's alternatives each row takes one in turn, of those whose ranks are active.
  // kUnavailable: a peer is gone (Communicator::Exchange), or an expert has no such alternative;
  // kInvalid: rows of an expert that is none; kInternal: a peer's message makes no sense here.
  // `sequence` and the one after it are those of the pair's two exchanges.
  Status Dispatch(Communicator& comm, uint64_t step, uint64_t sequence, uint32_t moe_ordinal,
                  const Rows& rows, std::span<const uint8_t> active = {});
  const Arrived& arrived() const { return arrived_; }
  // Rows of the last dispatch by expert [experts]: those of this rank, wherever they are computed;
  // those that are computed here, whosever they are.
  std::span<const uint32_t> routed() const { return routed_; }
  std::span<const uint32_t> executed() const { return executed_; }

  // `partials` [arrived().rows, hidden]; y [count, hidden] of the dispatch's rows is written.
  // Once after each Dispatch, else kInvalid. In fixed point (int64) sums are exact, and kInternal
  // if one wraps.
  Status Combine(Communicator& comm, const float* partials, float* y);
  Status Combine(Communicator& comm, const int64_t* partials, int64_t* y);

 private:
  struct Outgoing {
    std::vector<uint32_t> rows;    // of this rank, ascending
    std::vector<int32_t> choices;  // [rows, top_k]
  };
  Status Choose(const LayerRoutes& layer, uint32_t moe_ordinal, const Rows& rows,
                std::span<const uint8_t> active);
  Status Take(const LayerRoutes& layer, uint32_t rank, const std::vector<Bytes>& came,
              const Rows& rows, bool own);
  template <typename T>
  Status CombineAs(Communicator& comm, const T* partials, T* y);

  const RowFormat format_;
  const uint32_t experts_;
  std::shared_ptr<const Routes> routes_;
  // [MoE layers * experts]: how often each was sent for. Layers have turns of their own: what one
  // asks for must not decide which copy the next one uses.
  std::vector<uint32_t> turns_;
  // Of the pair that is open: what goes where, how many rows came from whom.
  std::vector<Outgoing> outgoing_;
  std::vector<uint32_t> came_, ranks_;
  Arrived arrived_;
  std::vector<uint32_t> routed_, executed_;
  uint64_t step_ = 0, sequence_ = 0;
  uint32_t count_ = 0;
  bool open_ = false;
};

}  // namespace tangram::engine
