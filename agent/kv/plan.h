// The KV plan: who holds which KV page after a flip, and where it comes from.
//
// One pure function that every rank of the epoch runs on the same gathered manifest and
// that answers the same everywhere; CoverCheck (cover.h) proves its answer without
// knowing how it was found. Words: architecture 2 and 8 ("KV").
//
// A block is block_tokens consecutive positions of one request or of a prefix that requests
// of one home share; it is named (home, block id). A page is one KV head of one layer of
// one block, on one rank.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
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
};

// The pages of one block on one rank: for every layer ascending, for every KV head that the
// rank holds in the home's group ascending.
struct HeldBlock {
  uint32_t home = 0;  // old rank
  uint32_t block = 0;
  std::vector<uint32_t> pages;
};

struct RankState {
  uint32_t total_pages = 0;
  uint32_t free_pages = 0;
  std::vector<HeldBlock> blocks;  // any order; every live block of the homes of its groups
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
};

// KV of `tokens` positions of one page, pulled into a page that the target takes from its free
// list. K is the first tokens * head_token_bytes / 2 bytes of the page, V the same count
// from the middle of the page (MoveRanges).
struct Move {
  uint32_t source_rank = 0;  // old numbering
  uint32_t source_page = 0;
  uint32_t layer = 0;
  uint32_t kv_head = 0;
  uint32_t home = 0;   // new
  uint32_t block = 0;  // new
  uint32_t tokens = 0;
  auto operator<=>(const Move&) const = default;
};

// A page that stays where it is and perhaps gets another name.
struct Keep {
  uint32_t page = 0;
  uint32_t layer = 0;
  uint32_t kv_head = 0;
  uint32_t home = 0;   // new
  uint32_t block = 0;  // new
  uint32_t tokens = 0;
  auto operator<=>(const Keep&) const = default;
};

struct RankPlan {
  std::vector<Move> moves;      // by (home, block, layer, kv_head)
  std::vector<Keep> kept;       // by (home, block, layer, kv_head)
  std::vector<uint32_t> freed;  // pages to give back after the flip, ascending
};

struct Placement {
  std::string id;
  uint32_t home = 0;             // new rank
  std::vector<uint32_t> blocks;  // exactly ceil(length / block_tokens) block ids of the new home
};

struct Plan {
  std::vector<Placement> requests;  // same order as the input
  std::vector<RankPlan> ranks;      // [new ranks]; a leaver frees all it has
  std::vector<uint32_t>
      next_block;               // [new ranks]: no block of this home has this id or a higher one
  uint64_t moved_bytes = 0;     // of filled tokens, local copies included
  uint64_t local_bytes = 0;     // of those, copies inside one rank
  uint64_t requests_moved = 0;  // whose home rank changed
};

// New homes: a request stays when its home is in a group of every layer after the flip and there
// is room, else it goes, longest first, to the rank with the least load that has room.
// Room is counted in unique blocks with every request's reservation, and the pages that arrive
// must fit beside the old ones (they are freed after the flip).
// kNoMemory when it does not fit (the message has the numbers; nothing is changed),
// kInvalid when the manifest contradicts itself.
Result<Plan> MakePlan(const Input& input);

// A copy inside a page: the same offset in source and target page.
struct Range {
  uint32_t offset = 0;
  uint32_t length = 0;
};
// The byte ranges of a page that hold `tokens` positions: K then V; one range if the page is
// full. Empty for 0 tokens.
std::vector<Range> MoveRanges(const Shape& shape, uint32_t tokens);

// KV heads [first, second) that position `position` of the group holds.
std::pair<uint32_t, uint32_t> HeldKvHeads(const Shape& shape, const Group& group, size_t position);

}  // namespace tangram::kv
