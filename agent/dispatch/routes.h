// The locations of a layout's experts: built once when it becomes active, read in every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"

namespace tangram::dispatch {

// A run of granules of an expert on this rank.
struct LocalPiece {
  const void* data = nullptr;
  uint32_t choice = 0;  // of its layer
  uint32_t expert = 0;
  uint32_t granule_start = 0, granule_count = 0;
};

constexpr uint32_t kInTurn = UINT32_MAX;  // in `own`: no replica is this rank's own

// The experts of one layer. A choice is one replica of one expert. The choices of a layer have
// consecutive numbers, in order of expert, the same on all ranks. A choice needs all of its ranks:
// each has some granules, and their results add up. Spans point into Routes.
struct LayerRoutes {
  std::span<const uint32_t> first;  // [experts + 1]: choices of e are first[e] .. first[e + 1]
  std::span<const uint32_t> ranks_begin;   // [choices + 1], into `ranks`
  std::span<const uint32_t> ranks;         // each rank once per choice
  std::span<const uint32_t> pieces_begin;  // [choices + 1], into `pieces`
  std::span<const LocalPiece> pieces;      // of this rank, in order of choice
  // [experts]: the choice for this rank's own rows while its ranks all take part; kInTurn: this
  // rank's rows go to all choices in turn. All choices are owned by equally many of their own
  // ranks, and no rank owns two. So if ranks have equally many rows for an expert, its choices get
  // equally many, with any set of available ranks.
  std::span<const uint32_t> own;

  uint32_t experts() const { return static_cast<uint32_t>(first.size() - 1); }
  uint32_t choices() const { return static_cast<uint32_t>(ranks_begin.size() - 1); }
  std::span<const uint32_t> RanksOf(uint32_t choice) const {
    return ranks.subspan(ranks_begin[choice], ranks_begin[choice + 1] - ranks_begin[choice]);
  }
  std::span<const LocalPiece> PiecesOf(uint32_t choice) const {
    return pieces.subspan(pieces_begin[choice], pieces_begin[choice + 1] - pieces_begin[choice]);
  }
};

class Routes {
 public:
  Routes() = default;
  // Linear in pieces. Own pieces without an address count as not here. kInvalid: an expert without
  // a replica, a replica without granules, or a replica on a rank outside the world.
  static Result<Routes> Of(const tg_maps& maps, const tg_model& model);

  uint32_t moe_layers() const { return static_cast<uint32_t>(layers_.size()); }
  LayerRoutes Layer(uint32_t moe_ordinal) const;

 private:
  struct Begin {  // of a layer, into the arrays below
    size_t first = 0, ranks_begin = 0, ranks = 0, pieces_begin = 0, pieces = 0, own = 0;
  };
  Status Add(const tg_maps& maps, const tg_layer_map& layer, uint32_t experts);
  uint32_t OwnOf(int32_t rank, size_t first, const Begin& begin);
  Begin End() const;

  std::vector<Begin> layers_, ends_;
  std::vector<uint32_t> first_, ranks_begin_, ranks_, pieces_begin_, own_;
  std::vector<LocalPiece> pieces_;
  std::vector<uint64_t> seen_;   // [ranks]: the last choice of the rank, counted over layers
  std::vector<uint32_t> holds_;  // [ranks]: choices of one expert that need the rank
  uint64_t choices_ = 0;
};

}  // namespace tangram::dispatch
