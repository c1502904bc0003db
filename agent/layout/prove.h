// A rank's own proof of its part of a plan, before it acts: exact cover, no overlaps, and the
// declared memory. Near-linear in the number of pieces.
#pragma once

#include <vector>

#include "agent/base/status.h"
#include "agent/layout/layout.h"

namespace tangram::layout {

// The source of each byte of the target, in the executor's order.
struct PartProof {
  struct Move {
    PlacedPiece piece;  // of the target; run = moved granules, offset/bytes of the whole piece
    Run run;            // granules of this move
    uint32_t source;    // 0 = checkpoint, n = rank n - 1 (fetches)
    uint32_t held;      // index into `held` (copies)
    // The piece's tail comes with this move, after the granules. Each new piece gets its tail with
    // one move: a copy if the rank holds a piece of the expert (`run` may then be empty), else the
    // first fetch from the checkpoint, else the first fetch.
    bool tail = false;
  };
  std::vector<bool> stays;            // by index of `held`; the others are released at Retire
  std::vector<PlacedPiece> incoming;  // of the target, not in place yet; in order (InOrder)
  std::vector<Move> fetches;          // in the order of the part
  std::vector<Move> copies;
  uint64_t peak_pages = 0;  // banks and dense, old and new together
  uint64_t steady_pages = 0;
  bool brings_dense = false;
};

// Proves that the pieces of `held` that stay, `part.copies` and `part.fetches` together are exactly
// PiecesOf(target, rank), each granule once; that copy sources are held; that no piece overwrites a
// held one; that peak and steady bytes are as declared. rank = -1: the member leaves and drops
// everything. kBadPlan names the granule.
Result<PartProof> ProvePart(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
                            const std::vector<PlacedPiece>& held, bool holds_dense,
                            const v1::RankPart& part);

}  // namespace tangram::layout
