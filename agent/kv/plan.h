// The KV plan: who holds which KV page after a flip, and where it comes from.
//
// Every rank of the epoch makes the same plan from the same gathered manifest: homes and names of
// all requests, the same everywhere, then its own part of what moves. cover.h proves both
// without knowing how they were found. Words: architecture 2 and 8 ("KV").
//
// A block is block_tokens consecutive positions of one request or of a prefix that requests
// of one home share; it is named (home, block id). A page is one KV head of one layer of
// one block, on one rank.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/status.h"

namespace tangram::kv {

// t ranks that share the heads of their requests in one layer. Position p computes query heads
// [bounds[p], bounds[p + 1]) and holds the KV heads that these read.
struct Group {
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> query_head_bounds;  // ranks + 1
  bool operator==(const Group&) const = default;
};
using LayerGroups = std::vector<Group>;  // of one layer; a rank is in at most one

struct Shape {
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;  // divides query_heads
  uint32_t block_tokens = 0;
  uint32_t head_token_bytes = 0;  // K and V of one token of one KV head
};

struct Request {
  std::string id;         // unique
  uint32_t home = 0;      // old rank
  uint32_t length = 0;    // positions whose KV is written and accepted
  uint32_t reserved = 0;  // most positions it may come to (prompt + max_tokens), >= length
  // Logical blocks of the home, in position order, at least ceil(length / block_tokens). Blocks
  // after those hold nothing accepted: the plan drops them.
  std::vector<uint32_t> blocks;
  // New rank to which its KV was copied already, in part: if it cannot stay it goes there, if there
  // is room. -1: none.
  int32_t promised = -1;
  // Nobody waits for it: placed after all others, in the order of the input, and not counted as
  // moved.
  bool idle = false;
};

// The pages of one KV head of one block on one rank, for `layers` layers from `layer` on: `page`,
// and each next one `stride` further. Who keeps the layers of a block side by side has one strip of
// a head, however many layers there are; who keeps a region per layer has the distance of two
// regions for a stride.
struct Strip {
  uint32_t home = 0;  // old rank
  uint32_t block = 0;
  uint32_t kv_head = 0;
  uint32_t layer = 0, layers = 0;
  uint32_t page = 0, stride = 1;
  auto operator<=>(const Strip&) const = default;
};

struct RankState {
  uint32_t total_pages = 0;
  uint32_t free_pages = 0;
  // Ascending by (home, block, kv_head, layer): every live block of the homes of its groups, for
  // every layer and every KV head that the rank holds in the home's group.
  std::vector<Strip> strips;
};

// The manifest and the two attention shardings: the whole input.
struct Input {
  Shape shape;
  std::vector<LayerGroups> old_groups;  // [layers], ranks of the old numbering
  std::vector<LayerGroups> new_groups;  // [layers], ranks of the new numbering
  std::vector<int32_t> new_of_old;      // [old ranks]: number after the flip, -1 for a leaver
  uint32_t new_ranks = 0;
  std::vector<uint32_t> joined_pages;  // [new ranks]: total pages of a rank without an old
                                       // number (0 for the others); may be empty
  std::vector<Request> requests;       // in one order on every rank
  std::vector<RankState> ranks;        // [old ranks]
  // Of layers with the same groups before and after no strips are listed: all KV there stays where
  // it is. Ranks and their numbers are the same then, and requests stay at their homes.
  bool only_changed = false;
};

// By layer: whether its groups differ.
std::vector<bool> LayersThatChange(const std::vector<LayerGroups>& before,
                                   const std::vector<LayerGroups>& after);

// KV of `tokens` positions in each page of a strip, pulled into pages that the target takes from
// its free list. Which bytes of a page these are, the engine's format says (format.h).
struct Move {
  uint32_t home = 0, block = 0;  // new
  uint32_t kv_head = 0;
  uint32_t layer = 0, layers = 0;
  uint32_t source_rank = 0;  // old numbering
  uint32_t source_page = 0, source_stride = 1;
  uint32_t tokens = 0;
  auto operator<=>(const Move&) const = default;
};

// Pages that stay where they are and perhaps get another name.
struct Keep {
  uint32_t home = 0, block = 0;  // new
  uint32_t kv_head = 0;
  uint32_t layer = 0, layers = 0;
  uint32_t page = 0, stride = 1;
  uint32_t tokens = 0;
  auto operator<=>(const Keep&) const = default;
};

// What one rank of the new numbering does.
struct RankPlan {
  std::vector<Move> moves;   // by (home, block, kv_head, layer)
  std::vector<Keep> kept;    // by (home, block, kv_head, layer)
  std::vector<Strip> freed;  // to give back after the flip, in the order of its manifest
  uint64_t moved_bytes = 0;  // of filled tokens, local copies included
  uint64_t local_bytes = 0;  // of those, copies inside the rank
};

struct Placement {
  std::string id;
  uint32_t home = 0;             // new rank
  std::vector<uint32_t> blocks;  // exactly ceil(length / block_tokens) block ids of the new home
};

// A block of an old home at a new one.
struct PlacedBlock {
  uint32_t block = 0;  // new
  uint32_t old_home = 0;
  uint32_t old_block = 0;
  uint32_t tokens = 0;  // most that a request of the new home has filled
  bool operator==(const PlacedBlock&) const = default;
};

// What all ranks know alike.
struct Plan {
  std::vector<Placement> requests;               // same order as the input
  std::vector<std::vector<PlacedBlock>> blocks;  // [new ranks], ascending
  std::vector<uint32_t>
      next_block;  // [new ranks]: no block of this home has this id or a higher one
  // Blocks that more than one new home needs: (old home, old block) -> the homes, in the order in
  // which they take over the pages that a rank already holds. The others need copies.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> shared;
  uint64_t requests_moved = 0;  // whose home rank changed
  double lopsided = 1;  // blocks of the fullest home over the mean of all, reserved ones too
};

// Beyond it, requests whose KV would cost no more bytes elsewhere do not stay where they are.
inline constexpr double kLopsided = 1.25;

// New homes: a request stays when its home is in a group of every layer after the flip and there
// is room, else it goes where it was promised to, if there is room. The others go, longest first,
// to the rank with the least load that has room. If that is lopsided (kLopsided), those are placed
// so as well that bring something if they stay, and no more if they go: where all heads of a
// request were split over ranks, any of these may have it. So who leaves Tensor comes back
// balanced. Room is counted in unique blocks with every request's reservation, and the pages that
// arrive must fit beside the old ones (they are freed after the flip). Grows with requests and
// blocks, not with pages. kNoMemory when it does not fit (the message has the numbers; nothing is
// changed), kNotHeld when only layers that change are listed and a request would have to leave its
// home, kInvalid when the manifest contradicts itself. All ranks find the same.
Result<Plan> MakePlan(const Input& input);

// One rank's part, `rank` in the new numbering: grows with what the rank holds and brings. Of equal
// replicas of a head the sources take turns. kInvalid: some rank's manifest lacks what its groups
// ask for, or this one's has a page twice; others may not find that.
Result<RankPlan> MakePart(const Input& input, const Plan& plan, uint32_t rank);

// KV heads [first, second) that position `position` of the group holds.
std::pair<uint32_t, uint32_t> HeldKvHeads(const Shape& shape, const Group& group, size_t position);

}  // namespace tangram::kv
