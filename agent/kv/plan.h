// The KV plan: the rank and source of each KV page after a flip.
//
// Every rank of the epoch makes the same plan from the same gathered manifest: homes and names of
// all requests. Then it makes its own part of the moves. cover.h proves both without knowledge of
// the planner. Terms: architecture 2 and 8 ("KV").
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
  uint32_t reserved = 0;  // maximum positions (prompt + max_tokens), >= length
  // Logical blocks of the home, in position order, at least ceil(length / block_tokens). Later
  // blocks have no accepted content: the plan drops them.
  std::vector<uint32_t> blocks;
  // The new rank to which part of its KV was copied already: if it cannot stay it goes there, if
  // there is room. -1: none.
  int32_t promised = -1;
  // No client waits for it: placed after all others, in the order of the input, and not counted as
  // moved.
  bool idle = false;
};

// The pages of one KV head of one block on one rank, for `layers` layers from `layer` on: `page`,
// and each next one `stride` further. A rank with a block's layers adjacent has one strip per head,
// for any number of layers. With a region per layer, the stride is the distance between two
// regions.
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

// The whole input: the manifest and the two attention shardings.
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
  // Layers with the same groups before and after are not listed: all their KV stays in place. Then
  // ranks and their numbers are unchanged, and requests stay at their homes.
  bool only_changed = false;
};

// By layer: whether its groups differ.
std::vector<bool> LayersThatChange(const std::vector<LayerGroups>& before,
                                   const std::vector<LayerGroups>& after);

// KV of `tokens` positions in each page of a strip, pulled into pages that the target takes from
// its free list. The engine's format has the bytes of a page (format.h).
struct Move {
  uint32_t home = 0, block = 0;  // new
  uint32_t kv_head = 0;
  uint32_t layer = 0, layers = 0;
  uint32_t source_rank = 0;  // old numbering
  uint32_t source_page = 0, source_stride = 1;
  uint32_t tokens = 0;
  auto operator<=>(const Move&) const = default;
};

// Pages that stay in place and perhaps get another name.
struct Keep {
  uint32_t home = 0, block = 0;  // new
  uint32_t kv_head = 0;
  uint32_t layer = 0, layers = 0;
  uint32_t page = 0, stride = 1;
  uint32_t tokens = 0;
  auto operator<=>(const Keep&) const = default;
};

// The part of one rank of the new numbering.
struct RankPlan {
  std::vector<Move> moves;   // by (home, block, kv_head, layer)
  std::vector<Keep> kept;    // by (home, block, kv_head, layer)
  std::vector<Strip> freed;  // to free after the flip, in the order of its manifest
  uint64_t moved_bytes = 0;  // of filled tokens, including local copies
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
  uint32_t tokens = 0;  // maximum that a request of the new home has filled
  bool operator==(const PlacedBlock&) const = default;
};

// The plan that all ranks have in common.
struct Plan {
  std::vector<Placement> requests;               // same order as the input
  std::vector<std::vector<PlacedBlock>> blocks;  // [new ranks], ascending
  std::vector<uint32_t>
      next_block;  // [new ranks]: no block of this home has this id or a higher one
  // Blocks that more than one new home needs: (old home, old block) -> the homes, in the order in
  // which they take over the pages that a rank already holds. The others need copies.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> shared;
  uint64_t requests_moved = 0;  // requests whose home rank changed
  double lopsided = 1;  // blocks of the fullest home over the mean of all, reserved ones too
};

// Above this ratio, requests whose KV would cost no more bytes elsewhere do not stay.
inline constexpr double kLopsided = 1.25;

// Decides the new homes. A request stays if its home is in a group of every layer after the flip
// and there is room. Otherwise it goes to its promised rank, if there is room. The others go,
// longest first, to the least loaded rank that has room. If the result is lopsided (kLopsided),
// requests that cost pages even if they stay, and no more elsewhere, are placed this way too. Where
// all heads of a request were split over ranks, any of these ranks may become its home, so a world
// that leaves TensorParallel is balanced. Room is counted in unique blocks with every request's
// reservation. Arriving pages must fit next to the old ones, which are freed after the flip. Cost
// grows with requests and blocks, not with pages. kNoMemory: it does not fit (the message has the
// numbers). kNotHeld: only changed layers are listed and a request would have to leave its home.
// kInvalid: the manifest contradicts itself. All ranks get the same result.
Result<Plan> MakePlan(const Input& input);

// Makes one rank's part, `rank` in the new numbering. Cost grows with the pages that the rank holds
// and fetches. Equal replicas of a head take turns as sources. kInvalid: some rank's manifest lacks
// a strip that its groups need, or this rank's has a page twice; other ranks may not detect that.
Result<RankPlan> MakePart(const Input& input, const Plan& plan, uint32_t rank);

// KV heads [first, second) that position `position` of the group holds.
std::pair<uint32_t, uint32_t> HeldKvHeads(const Shape& shape, const Group& group, size_t position);

}  // namespace tangram::kv
