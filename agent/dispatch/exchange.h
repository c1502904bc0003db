// Dispatch and combine over the links of a world: rows to the ranks that have their experts,
// partial sums back.
//
// For a layer of a step every rank calls Dispatch with its own rows (maybe none), computes the
// received rows, and calls Combine with the results. Returned sums are added in the order of ranks,
// and within a rank in the order of a row's choices, regardless of arrival. So a step that is
// repeated in the same layout has the same bits. Two pairs may be open concurrently, so the
// dispatch of a layer and the combine of the previous one overlap. All ranks have the same order of
// dispatches, and of combines.
//
// A rank that makes no progress while others wait for it is masked: until Enter, no rank sends to
// it or waits for it. Report lists the contributions that a pair lacks. A step that lacks one must
// not be emitted.
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

// Of one dispatch, valid for its one combine.
struct Handle {
  uint64_t epoch = 0, pair = 0;
};

// The received rows of all ranks, in their order. result[i] is the sum, over k and over the pieces
// here of choices[i][k] (LayerRoutes::PiecesOf; none for kNone), of weights[i][k] * expert(x[i]).
struct Arrived {
  uint32_t rows = 0;
  std::span<const float> x;          // [rows, hidden]
  std::span<const int32_t> choices;  // [rows, top_k]
  std::span<const float> weights;    // [rows, top_k]
};

// The received rows, packed: for each choice that has pieces here, in order of choice (so of
// expert), its rows, in order of ranks and of their rows.
struct Packed {
  uint32_t rows = 0;
  const void* x = nullptr;            // [rows, hidden] of the format's wire
  const float* scales = nullptr;      // kFp8: [rows, ScalesOf(hidden)]
  std::span<const uint32_t> choices;  // those with pieces here
  std::span<const uint32_t> counts;   // [choices]
};

// More packed rows arrived than fit; the rest was left out.
struct Overflow {
  uint64_t wanted = 0, capacity = 0;
};

// The missing contributions of one pair.
struct Report {
  std::vector<Contribution> missing;  // of this rank's rows, ascending
  std::optional<Overflow> overflow;   // in this rank's memory: other ranks lack these rows
  std::vector<uint32_t> masked;       // ranks masked before its end
  bool whole() const { return missing.empty() && !overflow; }
};

// The reason why a rank is masked, and where it was missed. `layer` counts layers with experts.
// doing 0: between pairs.
struct Found {
  tg_cause cause = TG_GONE;
  uint32_t doing = 0;  // tg_doing
  uint32_t layer = 0;
  std::string why;
};

struct ExchangeOptions {
  // A rank that sends nothing for this long while others wait for it is masked; nullopt: never.
  std::optional<std::chrono::nanoseconds> timeout = std::chrono::seconds(10);
  // Maximum rows by expert; further ones are left out and reported. 0: no limit.
  uint64_t packed_capacity = 0;
  // If an expert has no rank, or a peer is lost, the pair ends with an error instead of a report.
  bool strict = false;
  // Rows are returned one by one in F32 (Arrived), not packed by expert. For links that have a
  // message in one slot.
  bool by_rows = false;
};

// For one thread. Keeps its memory from call to call.
class Exchange {
 public:
  // The format is valid (Format::Check).
  Exchange(const Format& format, ExchangeOptions options) : format_(format), options_(options) {}

  // Sets the world and its layout; open pairs end. The turns of replicas are kept. `links` outlives
  // its use; routes null: in no world.
  void Enter(uint64_t epoch, Links* links, std::shared_ptr<const Routes> routes);
  const Format& format() const { return format_; }
  const Routes* routes() const { return routes_.get(); }
  uint64_t epoch() const { return epoch_; }

  // Sends. Large messages are sent as far as the links have room, so x and weights must stay
  // unchanged until Receive has completed. `active` [ranks]: 0 for ranks that take no part, the
  // same at all others; empty: all take part. kInvalid: rows of a nonexistent expert, more rows
  // than the format allows, or two pairs are open. kUnavailable, if strict: an expert has no
  // available replica.
  Result<Handle> Send(uint32_t moe_ordinal, const Rows& rows, std::span<const uint8_t> active = {});
  // Makes progress on all open pairs, without waiting. True once all data of this dispatch was sent
  // and received.
  Result<bool> TryReceive(const Handle& handle);
  // The same, but waits. Returns errors of the links, if strict.
  Status Receive(const Handle& handle);
  // Valid after Receive, until Combine has completed.
  Arrived arrived(const Handle& handle) const;
  // The pair's layer, in the layout at its Send.
  const LayerRoutes& layer(const Handle& handle) const { return Of(handle).layer; }
  Packed packed(const Handle& handle) const;
  // Rows of this dispatch by expert [experts]: `routed` counts this rank's rows, wherever they are
  // computed; `executed` counts rows computed here, of any rank. The latter also by choice
  // [choices].
  std::span<const uint32_t> routed(const Handle& handle) const;
  std::span<const uint32_t> executed(const Handle& handle) const;
  std::span<const uint32_t> executed_by_choice(const Handle& handle) const;

  // Memory for the experts' outputs, [packed.rows, hidden] of the format's outputs.
  void* NextCombineBuffer(const Handle& handle);
  // `outputs` as in NextCombineBuffer, or by rows [arrived.rows, hidden] of the format's sums,
  // already weighted; they must stay unchanged until Finish has completed. Once per dispatch, in
  // order, else kInvalid.
  Status SendBack(const Handle& handle, const void* outputs);
  // Writes y [count, hidden] for the dispatch's rows: F32, BF16 or int64, as the format's sums.
  // Ends the handle. kInternal: a sum overflows 64-bit fixed point.
  Result<bool> TryFinish(const Handle& handle, void* y);
  Status Finish(const Handle& handle, void* y);
  // Ends all open pairs; their late data is dropped.
  void Abandon();
  // The missing contributions of the last finished pair. Before that, of a dispatch: only overflow.
  const Report& report() const { return report_; }
  // Bytes of slots sent to other ranks so far, including heads.
  uint64_t wire_bytes(Lane lane) const { return wire_bytes_[static_cast<size_t>(lane)]; }

  // [ranks], 0: masked; and the reason for a masked one.
  std::span<const uint8_t> active_ranks() const { return active_; }
  const Found& found(uint32_t rank) const { return found_[rank]; }
  const std::string& cause(uint32_t rank) const { return found_[rank].why; }
  // Masks a rank that the caller knows to be lost.
  void Mask(uint32_t rank, std::string cause);

 private:
  // Data received from a rank.
  struct Incoming {
    Progress came;
    std::vector<int32_t> choices;  // [came.metas, top_k]
    std::vector<float> weights;
    std::vector<int64_t> at;  // [rows, top_k] in packed rows; -1: not here, or left out
    uint64_t first = 0;       // by rows: index of its first row in all
  };
  // In combine: sums sent to a rank, and received from it.
  struct Back {
    Progress sent, came;
    std::vector<uint32_t> lacking;  // [came.metas]: bits of choices missing in the sums
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
    uint64_t total = 0;  // received rows, packed or by rows
    std::optional<Overflow> overflow;
    RowMemory x, scales, outputs;
    std::vector<int32_t> all_choices;
    std::vector<float> all_weights;
    // Combine.
    const void* given = nullptr;
    std::vector<Back> back;
    std::vector<uint32_t> merged;  // [ranks]: rows of plan.to[r] that are in y
    uint32_t row = 0;              // the next row of y
    void* y = nullptr;
    std::vector<Contribution> missing;
    bool wraps = false;
    Status failed;
  };
  // Progress within the slot at the front of a link.
  struct Front {
    bool open = false;
    uint32_t row = 0;  // rows already taken
    SlotHead head;     // a copy, already checked
    const uint8_t* slot = nullptr;
  };

  Result<Pair*> At(const Handle& handle, Stage least, Stage most, const char* doing);
  Result<Pair*> ToFinish(const Handle& handle);
  const Pair& Of(const Handle& handle) const { return pairs_[handle.pair % 2]; }
  bool InPart(const Pair& pair, uint32_t rank) const {
    return pair.part[rank] != 0 && active_[rank] != 0;
  }
  // Waits for a lane of the pair, until done() or an error.
  template <typename Done>
  Status Await(Pair& pair, Lane lane, const Done& done);
  // Whether the lane still needs data from this rank.
  bool Awaited(const Pair& pair, Lane lane, uint32_t rank) const;
  void Poll();
  // The open pairs, the older first.
  std::array<Pair*, 2> InOrder();
  void End(Pair& pair);
  // `pair`, `lane`: where it was missed; nullptr: between pairs.
  void Gone(uint32_t rank, const Status& why, tg_cause cause, const Pair* pair = nullptr,
            Lane lane = Lane::kDispatch);

  // outgoing.cc
  void Fill(Pair& pair, Lane lane);
  void FillDispatch(Pair& pair, uint32_t rank, Link& link);
  void FillCombine(Pair& pair, uint32_t rank, Link& link);
  bool AllSent(const Pair& pair, Lane lane) const;
  // The outputs whose sum is row i of a rank's received rows, by choice; `lacking`: the choices
  // that are not among them.
  std::span<const Weighted> OutputsOf(const Pair& pair, uint32_t rank, uint32_t i,
                                      std::span<Weighted> into, uint32_t* lacking) const;
  // The sum of row i of a rank's received rows; returns the choices that are missing in it.
  uint32_t PartialOf(Pair& pair, uint32_t rank, uint32_t i, void* out);
  // incoming.cc
  void Take(uint32_t rank, Link& link, Lane lane);
  // The slot at the front, if it is for an open pair and not used up.
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
  // [MoE layers * experts]: rows per expert so far. Each layer has its own turns, so the rows of
  // one layer do not decide which replica another one uses.
  std::vector<uint32_t> turns_;
  std::array<Pair, 2> pairs_;
  std::vector<uint8_t> active_;
  std::vector<Found> found_;
  std::vector<std::array<Front, kLanes>> fronts_;
  std::vector<uint64_t> moved_;  // [ranks]: grows with all data sent and received
  RowMemory sum_, partial_;      // one row each
  std::vector<const void*> addends_;
  std::array<uint64_t, kLanes> wire_bytes_{};
  Report report_;
};

}  // namespace tangram::dispatch
