/* The format of an engine's KV in its region, and the byte moves of a KV plan.
 *
 * tg_kv_plan moves pages; only the engine knows their bytes. The engine describes its KV in
 * strides once and uses that description's page numbers (tg_kv_page) in the plan. It gets byte
 * ranges for tg_kv_pull, with adjacent ranges merged.
 *
 * Structs are versioned as in client.h.
 */
#ifndef TANGRAM_KV_FORMAT_H_
#define TANGRAM_KV_FORMAT_H_

#include "tangram/kv_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The element types of K and V. */
enum {
  TG_KV_F32 = 1,
  TG_KV_F16 = 2,
  TG_KV_BF16 = 3,
  TG_KV_FP8_E4M3 = 4,
  TG_KV_FP8_E5M2 = 5,
};

/* The row of K of (layer, block, head, position) begins at
 *   offset + layer * layer_stride + block * block_stride + head * head_stride
 *          + position * token_stride
 * in the KV region, and that of V value_offset further; all in bytes. `block` is the engine's
 * number (of a block table). An engine in whose pool a page may hold any head of any layer has 1
 * layer, 1 head, and a block per page. */
typedef struct {
  size_t struct_size;
  uint64_t offset;
  uint32_t layers, blocks, heads, block_tokens;
  uint32_t element;     /* TG_KV_* */
  uint32_t key_width;   /* elements of a row of K, or of a latent (MLA) */
  uint32_t value_width; /* of a row of V; 0: latents, which have none */
  uint32_t reserved;    /* 0 */
  uint64_t layer_stride, block_stride, head_stride; /* unused for a single layer, block or head */
  uint64_t token_stride, value_offset;
  /* Not 0: the engine has its own order within a page (packed for its kernels, say). Whole pages of
   * this many bytes move, even if partly filled; the two members before are 0. */
  uint64_t whole_page_bytes; /* needed, as all members before it */
} tg_kv_format;

/* The plan's page of this head of this block of this layer. The pages of a block in consecutive
 * layers are blocks * heads apart: the stride of a strip. */
static inline uint32_t tg_kv_page(const tg_kv_format* format, uint32_t layer, uint32_t block,
                                  uint32_t head) {
  return (layer * format->blocks + block) * format->heads + head;
}

/* TG_INVALID names the wrong member: rows or pages that overlap, or exceed a region of kv_bytes. */
tg_code tg_kv_format_check(const tg_kv_format* format, uint64_t kv_bytes, tg_error* error);

/* A move of a plan with the pages that the target takes for it: `pages` of them, from target_page
 * on, target_stride apart. One tg_kv_strip_move may become several, in parts. */
typedef struct {
  uint32_t source_rank; /* old numbering */
  uint32_t source_page, source_stride;
  uint32_t target_page, target_stride;
  uint32_t pages; /* layers */
  uint32_t tokens;
} tg_kv_page_copy;

typedef struct {
  size_t struct_size;
  size_t moves;
  const tg_kv_move* move; /* move_size apart */
  size_t move_size;
  uint64_t bytes; /* of all moves, including those within the rank */
} tg_kv_byte_moves;

/* The byte moves of all copies, each byte once, for tg_kv_pull. `sources` by old rank, NULL for one
 * that no copy comes from; all must have the target's rows, but strides may differ. Needs no client
 * and no agent; any thread. Time and memory grow with the copies and with the byte ranges that
 * result. With many copies, pass them in parts, and pull each part. TG_INVALID: a copy is not
 * within the pages of a format. *out is set on TG_OK only and lives until tg_kv_byte_moves_free. */
tg_code tg_kv_byte_moves_of(const tg_kv_format* const* sources, size_t source_count,
                            const tg_kv_format* target, const tg_kv_page_copy* copies, size_t count,
                            size_t copy_size, const tg_kv_byte_moves** out, tg_error* error);
void tg_kv_byte_moves_free(const tg_kv_byte_moves* moves);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_KV_FORMAT_H_ */
