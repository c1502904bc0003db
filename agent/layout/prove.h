// A rank's own proof of its part of a plan, before it acts: exact cover, no hazard,
// and the memory that was promised. Near-linear in the number of pieces.
#pragma once

#include <vector>

#include "agent/base/status.h"
#include "agent/layout/layout.h"

namespace tangram::layout {

// Where each byte of the target comes from, as the executor walks it.
struct PartProof {
  struct Move {
    PlacedPiece piece;  // of the target; run = what is moved, offset/bytes of the whole piece
    Run run;            // granules that this move brings
    uint32_t source;    // 0 = checkpoint, n = rank n - 1 (fetches)
    uint32_t held;      // index into `held` (copies)
    // The piece's tail comes with it, behind the granules. Of each piece that comes with one move:
    // a copy if the rank holds a piece of the expert (`run` may then have no granules), else the
    // first fetch that the checkpoint gives, else the first one.
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

// Proves that what `held` keeps in place, `part.copies` and `part.fetches` together are
// exactly PiecesOf(target, rank), each granule once; that copies are held; that no
// piece is written over one that is held; that peak and steady bytes are as declared.
// rank = -1: the member leaves and everything is dropped. kBadPlan names the granule.
Result<PartProof> ProvePart(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
                            const std::vector<PlacedPiece>& held, bool holds_dense,
                            const v1::RankPart& part);

}  // namespace tangram::layout
