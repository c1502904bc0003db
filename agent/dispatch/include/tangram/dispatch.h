/* Dispatch and combine of experts' rows from C (docs/dispatch.md). libtangram_dispatch.so.
 *
 * One thread per buffer. Structs begin with their size, so that a caller that was built with an
 * older header goes on working; lists come with the size of an entry. Functions give a tg_code, and
 * fill in `error` if it is not NULL. Pointers that are given out belong to the buffer. */
#ifndef TANGRAM_DISPATCH_H_
#define TANGRAM_DISPATCH_H_

#include <stddef.h>
#include <stdint.h>

#include "tangram/client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tgd_buffer tgd_buffer;

/* TGD_FIXED: 64-bit integers of unit 2^-40; TGD_FP8: e4m3 with an fp32 scale per 128 numbers. */
typedef enum { TGD_F32 = 1, TGD_BF16 = 2, TGD_FP8 = 3, TGD_FIXED = 4 } tgd_element;

/* The same on all members, but for the files of TLS. */
typedef struct {
  size_t struct_size;
  uint32_t hidden, top_k, experts; /* numbers of a row; experts of a token, of a layer */
  uint32_t x;                      /* tgd_element of rows: F32, BF16 */
  uint32_t wire;                   /* as they travel and are packed: as x, or FP8 */
  uint32_t sums;                   /* of what comes back: F32, BF16, FIXED */
  uint32_t most_tokens;            /* of a rank in one dispatch */
  uint32_t slots;                  /* of a lane between two members; 0: what whole messages take */
  uint64_t slot_bytes;
  int64_t timeout_us;       /* a rank that is silent for so long is masked; -1: never */
  uint64_t packed_capacity; /* rows by expert; more are left out and reported. 0: all that come */
  const char* world;        /* with the next three; NULL: connections without TLS */
  const char *tls_ca, *tls_cert, *tls_key;
} tgd_options;

/* A rank for as long as it lives. Members of one node share memory if both have a `local`
 * (unix:PATH); others meet at `endpoint` (host:port; port 0 of one's own: any, tgd_endpoint tells).
 * What is not there is NULL. */
typedef struct {
  size_t struct_size;
  const char* name;
  uint64_t generation;
  const char *node, *local, *endpoint, *pod;
} tgd_member;

/* A run of granules of one alternative (a redundant copy) of an expert. */
typedef struct {
  uint32_t layer, expert, alternative, rank;
  uint32_t granule_start, granule_count;
} tgd_piece;

typedef struct {
  uint64_t epoch, pair;
} tgd_handle;

/* What came: `x` [rows, hidden] of `wire`, by local expert; `scales` [rows, ceil(hidden / 128)] or
 * NULL; `experts`, `counts` [local]: the experts of choices that have pieces here, and their rows.
 * After an overflow `wanted` is more than `rows`. */
typedef struct {
  size_t struct_size;
  uint64_t rows, wanted;
  const void* x;
  const float* scales;
  const uint32_t *experts, *counts;
  size_t local;
} tgd_packed;

/* The k-th expert of a row. */
typedef struct {
  uint32_t row, k;
  int32_t expert;
} tgd_contribution;

/* Bytes of a member's links, and of its packed rows and outputs. */
tg_code tgd_size_hint(const tgd_options* options, uint32_t ranks, uint32_t local_experts,
                      uint64_t* links, uint64_t* packed, tg_error* error);

tg_code tgd_open(const tgd_options* options, const tgd_member* self, tgd_buffer** out,
                 tg_error* error);
void tgd_close(tgd_buffer* buffer);
const char* tgd_endpoint(const tgd_buffer* buffer);

/* Connections with those that will be members. TG_DISCONNECTED names who is missing, and why. */
tg_code tgd_prepare(tgd_buffer* buffer, const tgd_member* members, size_t count, size_t member_size,
                    int timeout_ms, tg_error* error);
/* Ranks by their place in the list (names and generations are looked at alone). `pieces`: of all
 * layers, in order of layer, expert and alternative. */
tg_code tgd_update_members(tgd_buffer* buffer, uint64_t epoch, const tgd_member* members,
                           size_t count, size_t member_size, const tgd_piece* pieces,
                           size_t piece_count, size_t piece_size, tg_error* error);
tg_code tgd_ended(tgd_buffer* buffer, const char* name, uint64_t generation, tg_error* error);

/* x [count, hidden], experts and weights [count, top_k]; they stay until tgd_receive gave TG_OK. */
tg_code tgd_send(tgd_buffer* buffer, uint32_t layer, uint32_t count, const void* x,
                 const int32_t* experts, const float* weights, tgd_handle* handle, tg_error* error);
/* TG_AGAIN, unless `wait`: not all is there. */
tg_code tgd_receive(tgd_buffer* buffer, const tgd_handle* handle, int wait, tgd_packed* packed,
                    tg_error* error);
/* [rows, hidden], BF16 where sums are, else F32. */
tg_code tgd_next_combine_buffer(tgd_buffer* buffer, const tgd_handle* handle, void** outputs,
                                tg_error* error);
tg_code tgd_send_back(tgd_buffer* buffer, const tgd_handle* handle, const void* outputs,
                      tg_error* error);
/* y [count, hidden] of sums. TG_AGAIN, unless `wait`: not all is there. */
tg_code tgd_finish(tgd_buffer* buffer, const tgd_handle* handle, int wait, void* y,
                   tg_error* error);

/* Of the pair that was finished last: what is not in its y. */
size_t tgd_missing(const tgd_buffer* buffer, const tgd_contribution** out);
/* [ranks], 0: masked; why a rank is, in words, and as agents and the operator tell it: 0, and *out
 * as it was, if it is not masked. out->doing is 0 between pairs. */
size_t tgd_active_ranks(const tgd_buffer* buffer, const uint8_t** out);
const char* tgd_cause(const tgd_buffer* buffer, uint32_t rank);
int tgd_found(const tgd_buffer* buffer, uint32_t rank, tg_missed* out);
/* Somebody else knows that it is gone: nobody waits for it any more. */
tg_code tgd_mask(tgd_buffer* buffer, uint32_t rank, const char* cause, tg_error* error);
/* "shared memory", "TCP", "here", "none". */
const char* tgd_path(const tgd_buffer* buffer, uint32_t rank);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_DISPATCH_H_ */
