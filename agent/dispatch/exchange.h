// Dispatch and combine over the links of a world: rows to the ranks that have their experts,
// partial sums back.
//
// Of a step's layer every rank calls Dispatch with its own rows (also with none), computes what
// came, and calls Combine with the results. What a rank gets back is summed in the order of ranks,
// and within a rank in the order of a row's choices, whatever came first: a step that is done again
// in the same layout has the same bits. Two pairs may be open at once, so that the dispatch of a
// layer and the combine of the one before overlap; dispatches have one order on all ranks, and
// combines the same.
//
// A rank that makes no progress while it is waited for is masked: nothing goes to it and nobody
// waits for it any more, until Enter. What a pair lacks then is told (Report), and a step that
// lacks something is not to be emitted.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/dispatch/link.h"
#include "agent/dispatch/memory.h"
#include "agent/dispatch/plan.h"
#include "agent/dispatch/slot.h"

namespace tangram::dispatch {

// Of one dispatch, for its one combine.
struct Handle {
  uint64_t epoch = 0, pair = 0;
};

// What came, row by row, of all ranks in their order: result[i] is the sum, over k and over the
// pieces here of choices[i][k] (LayerRoutes::PiecesOf; none for kNone), of weights[i][k] *
// expert(x[i]).
struct Arrived {
  uint32_t rows = 0;
  std::span<const float> x;          // [rows, hidden]
  std::span<const int32_t> choices;  // [rows, top_k]
  std::span<const float> weights;    // [rows, top_k]
};

// What came, packed: for each choice that has pieces here, in order of choice (so of expert), the
// rows for it, in order of ranks and of their rows.
struct Packed {
  uint32_t rows = 0;
  const void* x = nullptr;            // [rows, hidden] of the format's wire
  const float* scales = nullptr;      // kFp8: [rows, ScalesOf(hidden)]
  std::span<const uint32_t> choices;  // those with pieces here
  std::span<const uint32_t> counts;   // [choices]
};

// More packed rows came than there is room for; those behind it were left out.
struct Overflow {
  uint64_t wanted = 0, capacity = 0;
};

// What one pair lacks.
struct Report {
  std::vector<Contribution> missing;  // of this rank's rows, ascending
  std::optional<Overflow> overflow;   // of this rank's memory: others lack it
  std::vector<uint32_t> masked;       // ranks that were masked while it was open, or before
  bool whole() const { return missing.empty() && !overflow; }
};

// Why a rank is masked, and what it was missed in; `layer` of those with experts. doing 0: between
// pairs.
struct Found {
  tg_cause cause = TG_GONE;
  uint32_t doing = 0;  // tg_doing
  uint32_t layer = 0;
  std::string why;
};

struct ExchangeOptions {
  // A rank of which nothing came for so long while it was waited for is masked; nullopt: never.
  std::optional<std::chrono::nanoseconds> timeout = std::chrono::seconds(10);
  // Of rows by expert; what more comes is left out and reported. 0: as many as come.
  uint64_t packed_capacity = 0;
  // An expert that no rank has any more, or a peer that is gone, ends the pair with an error, in
  // place of a report.
  bool strict = false;
  // Rows come one by one in F32 (Arrived), not packed by expert. For links that have a message in
  // one slot.
  bool by_rows = false;
};

// One thread. Memory is kept from call to call.
class Exchange {
 public:
  // The format is good (Format::Check).
  Exchange(const Format& format, ExchangeOptions options) : format_(format), options_(options) {}

  // The world and its layout from here on; pairs that are open are over. What of a layer's
  // alternatives is next is kept. `links` outlives its use; routes null: out of every world.
  void Enter(uint64_t epoch, Links* links, std::shared_ptr<const Routes> routes);
  const Format& format() const { return format_; }
  const Routes* routes() const { return routes_.get(); }
  uint64_t epoch() const { return epoch_; }

  // Sends; of big messages as much as the links have room for, so x and weights must stay as they
  // are until Receive is through. `active` [ranks]: 0 for those that take no part, the same at all
  // that do; empty: all. kInvalid: rows of an expert that is none, more rows than the format
  // allows, two pairs are open. kUnavailable, if strict: an expert has no alternative.
  Result<Handle> Send(uint32_t moe_ordinal, const Rows& rows, std::span<const uint8_t> active = {});
  // Goes on with all that is open, without waiting: true once everything of this dispatch went out
  // and came.
  Result<bool> TryReceive(const Handle& handle);
  // The same, waiting. Errors as Send's links have them, if strict.
  Status Receive(const Handle& handle);
  // After Receive, until Combine is through.
  Arrived arrived(const Handle& handle) const;
  // Of the pair's layer, in the layout that it was sent in.
  const LayerRoutes& layer(const Handle& handle) const { return Of(handle).layer; }
  Packed packed(const Handle& handle) const;
  // Rows of this dispatch by expert [experts]: those of this rank, wherever they are computed;
  // those that are computed here, whosever they are. The latter by choice, too [choices].
  std::span<const uint32_t> routed(const Handle& handle) const;
  std::span<const uint32_t> executed(const Handle& handle) const;
  std::span<const uint32_t> executed_by_choice(const Handle& handle) const;

  // Memory for what the experts give, [packed.rows, hidden] of the format's outputs.
  void* NextCombineBuffer(const Handle& handle);
  // `outputs` as NextCombineBuffer's, or by rows [arrived.rows, hidden] of the format's sums, not
  // weighted any more; they must stay until FinishCombine is through. Once for each dispatch, in
  // order, else kInvalid.
  Status SendBack(const Handle& handle, const void* outputs);
  // y [count, hidden] of the dispatch's rows is written: F32, BF16 or int64, as the format's sums.
  // The handle is over. kInternal: a sum leaves 64-bit fixed point.
  Result<bool> TryFinish(const Handle& handle, void* y);
  Status Finish(const Handle& handle, void* y);
  // Whatever is open is over, and what still comes of it is dropped.
  void Abandon();
  // What the pair that was finished last lacks. Until then, of a dispatch: only overflow.
  const Report& report() const { return report_; }
  // Bytes of slots that went to other ranks so far, heads and all.
  uint64_t wire_bytes(Lane lane) const { return wire_bytes_[static_cast<size_t>(lane)]; }

  // [ranks], 0: masked; and why a masked one is.
  std::span<const uint8_t> active_ranks() const { return active_; }
  const Found& found(uint32_t rank) const { return found_[rank]; }
  const std::string& cause(uint32_t rank) const { return found_[rank].why; }
  // From outside: somebody knows that it is gone.
  void Mask(uint32_t rank, std::string cause);

 private:
  // What comes from a rank.
  struct Incoming {
    Progress came;
    std::vector<int32_t> choices;  // [came.metas, top_k]
    std::vector<float> weights;
    std::vector<int64_t> at;  // [rows, top_k] in packed rows; -1: not here, or left out
    uint64_t first = 0;       // by rows: of its first in all
  };
  // What goes to a rank and comes back from it, in combine.
  struct Back {
    Progress sent, came;
    std::vector<uint32_t> lacking;  // [came.metas]: bits of choices that are not in the sums
  };
  enum class Stage { kFree, kDispatching, kArrived, kCombining };
  struct Pair {
    Stage stage = Stage::kFree;
    uint64_t number = 0;
    uint32_t moe_ordinal = 0;
    LayerRoutes layer;
    std::shared_ptr<const Routes> routes;
    Rows rows;
    std::vector<int32_t> experts;  // [count, top_k]
    std::vector<uint8_t> part;     // [ranks]: takes part in this pair
    Plan plan;
    std::vector<Progress> sent;
    std::vector<Incoming> in;
    bool placed = false, streamed = false;
    std::array<bool, kLanes> settled{};
    std::vector<uint32_t> choices, counts;  // Packed
    std::vector<uint32_t> executed, by_choice;
    uint64_t total = 0;  // rows that came, packed or by rows
    std::optional<Overflow> overflow;
    RowMemory x, scales, outputs;
    std::vector<int32_t> all_choices;
    std::vector<float> all_weights;
    // Combine.
    const void* given = nullptr;
    std::vector<Back> back;
    std::vector<uint32_t> merged;  // [ranks]: rows of plan.to[r] that are in y
    uint32_t row = 0;              // the next of y
    void* y = nullptr;
    std::vector<Contribution> missing;
    bool wraps = false;
    Status failed;
  };
  // How far the slot at the front of a link is used.
  struct Front {
    bool open = false;
    uint32_t row = 0;  // rows of it that are taken
    SlotHead head;     // a copy: what was checked
    const uint8_t* slot = nullptr;
  };

  Result<Pair*> At(const Handle& handle, Stage least, Stage most, const char* doing);
  Result<Pair*> ToFinish(const Handle& handle);
  const Pair& Of(const Handle& handle) const { return pairs_[handle.pair % 2]; }
  bool InPart(const Pair& pair, uint32_t rank) const {
    return pair.part[rank] != 0 && active_[rank] != 0;
  }
  // The pair that is waited for, for how long: until done() or an error.
  template <typename Done>
  Status Await(Pair& pair, Lane lane, const Done& done);
  // Whether something of this rank is still waited for.
  bool Awaited(const Pair& pair, Lane lane, uint32_t rank) const;
  void Poll();
  // The pairs that are open, the older first.
  std::array<Pair*, 2> InOrder();
  void End(Pair& pair);
  // `pair`: in which lane of which; nullptr: in none.
  void Gone(uint32_t rank, const Status& why, tg_cause cause, const Pair* pair = nullptr,
            Lane lane = Lane::kDispatch);

  // outgoing.cc
  void Fill(Pair& pair, Lane lane);
  void FillDispatch(Pair& pair, uint32_t rank, Link& link);
  void FillCombine(Pair& pair, uint32_t rank, Link& link);
  bool AllSent(const Pair& pair, Lane lane) const;
  // The outputs that row i of those that came from a rank is summed from, by choice; the choices
  // that are not among them.
  std::span<const Weighted> OutputsOf(const Pair& pair, uint32_t rank, uint32_t i,
                                      std::span<Weighted> into, uint32_t* lacking) const;
  // The sum of row i of those that came from a rank; the choices that are not in it.
  uint32_t PartialOf(Pair& pair, uint32_t rank, uint32_t i, void* out);
  // incoming.cc
  void Take(uint32_t rank, Link& link, Lane lane);
  // The slot at the front, if it is for a pair that is open here and is not used up.
  Pair* Open(uint32_t rank, Link& link, Lane lane);
  Status Told(Pair& pair, uint32_t rank, std::span<const uint8_t> slot, const SlotHead& head);
  void TakeOwn(Pair& pair);
  bool MayPlace(const Pair& pair) const;
  void Place(Pair& pair);
  void PlaceByRows(Pair& pair);
  void PlacePacked(Pair& pair);
  void PlaceRow(Pair& pair, uint32_t rank, uint32_t i, const void* row);
  void LeaveEmpty(Pair& pair, uint32_t rank);
  void Merge(Pair& pair);
  bool MergeRow(Pair& pair);
  void Lacks(Pair& pair, uint32_t rank, uint32_t i, uint32_t bits);
  bool Received(const Pair& pair) const;
  bool Finished(const Pair& pair) const;

  const Format format_;
  const ExchangeOptions options_;
  uint64_t epoch_ = 0, next_ = 0;
  Links* links_ = nullptr;
  std::shared_ptr<const Routes> routes_;
  // [MoE layers * experts]: how often each was sent for. Layers have turns of their own: what one
  // asks for must not decide which copy the next one uses.
  std::vector<uint32_t> turns_;
  std::array<Pair, 2> pairs_;
  std::vector<uint8_t> active_;
  std::vector<Found> found_;
  std::vector<std::array<Front, kLanes>> fronts_;
  std::vector<uint64_t> moved_;  // [ranks]: grows with all that goes and comes
  RowMemory sum_, partial_;      // a row each
  std::vector<const void*> addends_;
  std::array<uint64_t, kLanes> wire_bytes_{};
  Report report_;
};

}  // namespace tangram::dispatch
