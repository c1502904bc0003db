/* The KV plan: which rank holds which KV page after a flip, and where it comes from.
 *
 * A pure function: every rank of the epoch gives it the same gathered manifest and gets the same
 * plan. What it gives out has passed a check that does not know how it was found.
 *
 * A block is block_tokens consecutive positions of one request, or of a prefix that requests of
 * one home rank share; its name is (home, block). A page is one KV head of one layer of one
 * block, on one rank; it has block_tokens * head_token_bytes bytes: K of all positions, then V.
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
  uint32_t reserved;      /* most positions it may come to, or 0 while it waits */
  uint32_t block_count;   /* at least ceil(length / block_tokens) */
  const uint32_t* blocks; /* of the home, in position order; those after the length are dropped */
} tg_kv_request;

/* The pages of one block on one rank: for every layer ascending, for every KV head that the
 * rank holds in the home's group ascending. */
typedef struct {
  uint32_t home, block;
  size_t page_count;
  const uint32_t* pages;
} tg_kv_block;

/* Any order of blocks; every live block of the homes of the rank's groups. */
typedef struct {
  uint32_t total_pages, free_pages;
  size_t block_count;
  const tg_kv_block* blocks; /* block_size apart */
} tg_kv_rank;

/* What the plan is made from. Arrays are as long as the count before them says. */
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
  size_t rank_size, block_size;
  uint32_t new_ranks;
  const uint32_t* joined_pages; /* [new_ranks]: pages of one without an old number, else 0; or NULL
                                   where nobody joins */
  size_t requests;
  const tg_kv_request* request; /* [requests], request_size apart; one order on all ranks */
  size_t request_size;          /* needed, as is all before it */
} tg_kv_manifest;

/* The KV of `tokens` positions, pulled into a page that the target takes from its free list. */
typedef struct {
  uint32_t source_rank, source_page; /* old numbering */
  uint32_t layer, kv_head;
  uint32_t home, block; /* new */
  uint32_t tokens;
} tg_kv_page_move;

/* A page that stays where it is, perhaps under another name. */
typedef struct {
  uint32_t page;
  uint32_t layer, kv_head;
  uint32_t home, block; /* new */
  uint32_t tokens;
} tg_kv_kept;

/* Moves and kept pages are ordered by (home, block, layer, kv_head). */
typedef struct {
  size_t moves;
  const tg_kv_page_move* move; /* move_size apart */
  size_t kept_pages;
  const tg_kv_kept* kept; /* kept_size apart */
  size_t freed_pages;
  const uint32_t* freed; /* pages to give back after the flip, ascending */
} tg_kv_rank_plan;

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
  const tg_kv_rank_plan* ranks; /* rank_size apart; a leaver frees all it has */
  size_t rank_size, move_size, kept_size;
  const uint32_t* next_block; /* [new_ranks]: no block of this home has this id or a higher one */
  uint64_t moved_bytes;       /* of filled positions, copies inside a rank included */
  uint64_t local_bytes;       /* of those, copies inside a rank */
  uint64_t requests_moved;    /* whose home changed */
} tg_kv_planned;

/* Needs no client and no agent; any thread. TG_NO_ROOM: it does not fit, the error has the numbers;
 * TG_INVALID: the manifest contradicts itself. *out is set on TG_OK only and lives until
 * tg_kv_plan_free. */
tg_code tg_kv_plan(const tg_kv_manifest* manifest, const tg_kv_planned** out, tg_error* error);
void tg_kv_plan_free(const tg_kv_planned* planned);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_KV_PLAN_H_ */
