/* The KV plan: the rank and source of each KV page after a flip.
 *
 * A pure function: every rank of the epoch calls it with the same gathered manifest and gets the
 * same homes and names, and its own part of the moves. The result has passed a check that does not
 * know the planner. Its cost grows with blocks, not with pages.
 *
 * A block is block_tokens consecutive positions of one request, or of a prefix that requests of
 * one home rank share; its name is (home, block). A page is one KV head of one layer of one
 * block, on one rank; the engine decides the place of its bytes (kv_format.h).
 *
 * Structs are versioned as in client.h.
 */
#ifndef TANGRAM_KV_PLAN_H_
#define TANGRAM_KV_PLAN_H_

#include "tangram/client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The attention groups of one layer, as in tg_layer_map. A rank is in at most one. */
typedef struct {
  size_t count;
  const tg_attention_group* groups; /* group_size apart */
} tg_kv_layer;

typedef struct {
  const char* id;         /* unique */
  uint32_t home;          /* old rank */
  uint32_t length;        /* positions whose KV is written and accepted */
  uint32_t reserved;      /* maximum positions, or 0 while it waits */
  uint32_t block_count;   /* at least ceil(length / block_tokens) */
  const uint32_t* blocks; /* at home, in position order; blocks beyond the length are dropped */
} tg_kv_request;

/* The pages of one KV head of one block on one rank, for `layers` layers from `layer` on: `page`,
 * and each next one `stride` further. With one region for all layers and adjacent pages per block,
 * the stride is 1. With a region per layer, the stride is the number of pages of such a region. */
typedef struct {
  uint32_t home, block;
  uint32_t kv_head;
  uint32_t layer, layers;
  uint32_t page, stride;
} tg_kv_strip;

/* Strips ascend by (home, block, kv_head, layer): every live block of the homes of the rank's
 * groups, for every layer and every KV head that the rank holds in the home's group. */
typedef struct {
  uint32_t total_pages, free_pages;
  size_t strip_count;
  const tg_kv_strip* strips; /* strip_size apart */
} tg_kv_rank;

/* The input of the plan. Array lengths are the counts before them. */
typedef struct {
  size_t struct_size;
  uint32_t query_heads, kv_heads, block_tokens;
  uint32_t head_token_bytes; /* K and V of one token of one KV head */
  size_t layers;
  const tg_kv_layer* old_groups; /* [layers], layer_size apart; ranks of the old numbering */
  const tg_kv_layer* new_groups; /* [layers], layer_size apart; ranks of the new numbering */
  size_t layer_size, group_size;
  size_t old_ranks;
  const int32_t* new_of_old; /* [old_ranks]: number after the flip, -1: it leaves */
  const tg_kv_rank* ranks;   /* [old_ranks], rank_size apart */
  size_t rank_size, strip_size;
  uint32_t new_ranks;
  int32_t
      rank; /* rank of the requested part, new numbering; -1: a leaver, which frees all its pages */
  const uint32_t* joined_pages; /* [new_ranks]: pages of one without an old number, else 0; or NULL
                                   if no rank joins */
  size_t requests;
  const tg_kv_request* request; /* [requests], request_size apart; one order on all ranks */
  size_t request_size;          /* needed, as all members before it */
} tg_kv_manifest;

/* The KV of `tokens` positions in each page of a strip, pulled into pages that the target takes
 * from its free list. */
typedef struct {
  uint32_t home, block; /* new */
  uint32_t kv_head;
  uint32_t layer, layers;
  uint32_t source_rank, source_page, source_stride; /* old numbering */
  uint32_t tokens;
} tg_kv_strip_move;

/* Pages that stay in place, perhaps under another name. */
typedef struct {
  uint32_t home, block; /* new */
  uint32_t kv_head;
  uint32_t layer, layers;
  uint32_t page, stride;
  uint32_t tokens;
} tg_kv_kept;

typedef struct {
  const char* id;
  uint32_t home; /* new rank */
  uint32_t block_count;
  const uint32_t* blocks; /* ceil(length / block_tokens) of the new home */
} tg_kv_home;

typedef struct {
  size_t struct_size;
  size_t requests;
  const tg_kv_home* request; /* in the order of the manifest, request_size apart */
  size_t request_size;
  size_t new_ranks;
  const uint32_t* next_block; /* [new_ranks]: no block of this home has this id or a higher one */
  uint64_t requests_moved;    /* requests whose home changed */
  /* The part of the manifest's `rank`; moves and kept pages by (home, block, kv_head, layer). */
  size_t moves;
  const tg_kv_strip_move* move; /* move_size apart */
  size_t kept_strips;
  const tg_kv_kept* kept; /* kept_size apart */
  size_t freed_strips;
  const tg_kv_strip* freed; /* under their old names, to free after the flip; freed_size apart */
  size_t move_size, kept_size, freed_size;
  uint64_t moved_bytes; /* of filled positions, including copies inside the rank */
  uint64_t local_bytes; /* of those, copies inside the rank */
} tg_kv_planned;

/* Needs no client and no agent; any thread. TG_NO_ROOM: it does not fit, at any rank; the error has
 * the numbers. TG_INVALID: the manifest contradicts itself, perhaps only in this rank's part. *out
 * is set on TG_OK only and lives until tg_kv_plan_free. */
tg_code tg_kv_plan(const tg_kv_manifest* manifest, const tg_kv_planned** out, tg_error* error);
void tg_kv_plan_free(const tg_kv_planned* planned);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_KV_PLAN_H_ */
