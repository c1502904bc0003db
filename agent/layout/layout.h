// Rules of v1::Layout: validity, deltas, and the places of a rank's pieces. C++ twin of
// operator/pkg/layout; tests/golden checks that both give the same results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "agent/base/status.h"
#include "agent/layout/geometry.h"
#include "tangram/v1/layout.pb.h"
#include "tangram/v1/plan.pb.h"

namespace tangram::layout {

// A piece and its place on one rank.
struct PlacedPiece {
  uint32_t layer = 0;  // model layer
  uint32_t bank = 0;
  uint32_t slot = 0;
  uint32_t expert = 0;
  Run run;
  uint64_t offset = 0;  // of its first byte in the bank
  uint64_t bytes = 0;   // granules and tail
  bool operator==(const PlacedPiece&) const = default;
};

// Key of a rank's pieces: layer, expert, first granule. A rank holds two pieces of one key only
// while one of them is about to be freed.
using PieceKey = std::tuple<uint32_t, uint32_t, uint32_t>;
inline PieceKey KeyOf(const PlacedPiece& piece) {
  return {piece.layer, piece.expert, piece.run.start};
}
inline bool InOrder(const PlacedPiece& a, const PlacedPiece& b) { return KeyOf(a) < KeyOf(b); }

// Checks complete owners, no rank in two groups of a layer, bounds, banks, heads. Errors name
// layer, group and numbers.
Status Validate(const v1::Layout& layout, const GeometryView& geometry);

// `base` with the delta applied and the epoch set. Layers of the delta are replaced completely and
// not renumbered. Does not validate.
Result<v1::Layout> Apply(const v1::Layout& base, const v1::LayoutDelta& delta, uint64_t epoch);

std::string HashOf(const v1::Layout& layout);

// A layout from its wire form; kBadPlan if it is invalid. Its messages share one arena; for 58 x
// 256 experts they would otherwise be 50,000 allocations. Does not validate.
Result<std::shared_ptr<const v1::Layout>> Parse(std::string_view wire);

// Every piece of `rank`, ordered by layer, position, then slot. The layout must be valid.
std::vector<PlacedPiece> PiecesOf(const v1::Layout& layout, const GeometryView& geometry,
                                  uint32_t rank);
// Appends the pieces of one layer.
void AddPiecesOf(const v1::LayerLayout& layer, const GeometryView& geometry, uint32_t rank,
                 std::vector<PlacedPiece>* out);

bool HoldsDense(const v1::Layout& layout, uint32_t rank);
// Rank of a member, or -1.
int32_t RankOf(const v1::Layout& layout, const std::string& member);
// KV heads that position `position` of the group reads: [first, last).
Run KvHeadsOf(const v1::AttentionGroup& group, uint32_t position, const GeometryView& geometry);

// Number of distinct pages that the pieces touch, over all banks. Sweeps over page runs: n log n in
// the pieces, whatever their size.
uint64_t PagesTouched(const std::vector<PlacedPiece>& pieces, const GeometryView& geometry);

}  // namespace tangram::layout
