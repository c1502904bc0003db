// Rules over v1::Layout: validity, deltas, and where each piece of a rank lies.
// C++ twin of operator/pkg/layout; tests/golden holds both to the same answers.
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

// How pieces of a rank are found: by layer, expert, first granule. A rank holds two pieces of one
// key only while one of them is to be let go of.
using PieceKey = std::tuple<uint32_t, uint32_t, uint32_t>;
inline PieceKey KeyOf(const PlacedPiece& piece) {
  return {piece.layer, piece.expert, piece.run.start};
}
inline bool InOrder(const PlacedPiece& a, const PlacedPiece& b) { return KeyOf(a) < KeyOf(b); }

// Complete owners, no rank in two groups of a layer, bounds, banks, heads. The message names
// layer, group and numbers.
Status Validate(const v1::Layout& layout, const GeometryView& geometry);

// `base` with the delta applied and the epoch set; layers that the delta names are replaced
// whole and not renumbered. Does not validate.
Result<v1::Layout> Apply(const v1::Layout& base, const v1::LayoutDelta& delta, uint64_t epoch);

std::string HashOf(const v1::Layout& layout);

// From its wire form; kBadPlan when it is none. Its messages are one block of memory, made and let
// go of as one: those of 58 x 256 experts are 50,000 otherwise. Does not validate.
Result<std::shared_ptr<const v1::Layout>> Parse(std::string_view wire);

// Every piece that `rank` holds, ordered by layer, position, then slot. The layout is valid.
std::vector<PlacedPiece> PiecesOf(const v1::Layout& layout, const GeometryView& geometry,
                                  uint32_t rank);
// Appends those of one layer.
void AddPiecesOf(const v1::LayerLayout& layer, const GeometryView& geometry, uint32_t rank,
                 std::vector<PlacedPiece>* out);

bool HoldsDense(const v1::Layout& layout, uint32_t rank);
// Rank of a member, or -1.
int32_t RankOf(const v1::Layout& layout, const std::string& member);
// KV heads that position p of the group reads: [first, last).
Run KvHeadsOf(const v1::AttentionGroup& group, uint32_t position, const GeometryView& geometry);

// How many distinct pages pieces touch, over all banks: a sweep over runs of pages, n log n in the
// pieces however large they are.
uint64_t PagesTouched(const std::vector<PlacedPiece>& pieces, const GeometryView& geometry);

}  // namespace tangram::layout
