/* Dispatch and combine of experts' rows from C (docs/dispatch.md). libtangram_dispatch.so.
 *
 * One thread per buffer. Structs begin with their size, so callers built with an older header
 * continue to work; lists have the size of an entry as a parameter. Functions return a tg_code, and
 * set `error` if it is not NULL. The buffer owns the pointers that it returns. */
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

/* The same on all members, except the TLS files. */
typedef struct {
  size_t struct_size;
  uint32_t hidden, top_k, experts; /* numbers per row; experts per token, per layer */
  uint32_t x;                      /* tgd_element of rows: F32, BF16 */
  uint32_t wire;                   /* of rows when sent and packed: as x, or FP8 */
  uint32_t sums;                   /* of returned sums: F32, BF16, FIXED */
  uint32_t most_tokens;            /* per rank and dispatch */
  uint32_t slots;                  /* of a lane between two members; 0: for whole messages */
  uint64_t slot_bytes;
  int64_t timeout_us;       /* a rank that is silent for this long is masked; -1: never */
  uint64_t packed_capacity; /* rows by expert; more are left out and reported. 0: no limit */
  const char* world;        /* with the next three; NULL: connections without TLS */
  const char *tls_ca, *tls_cert, *tls_key;
} tgd_options;

/* A rank during its lifetime. Members of one node share memory if both have a `local` (unix:PATH);
 * others connect to `endpoint` (host:port; own port 0: any, tgd_endpoint returns it). Missing
 * fields are NULL. */
typedef struct {
  size_t struct_size;
  const char* name;
  uint64_t generation;
  const char *node, *local, *endpoint, *pod;
} tgd_member;

/* A run of granules of one alternative (replica) of an expert. */
typedef struct {
  uint32_t layer, expert, alternative, rank;
  uint32_t granule_start, granule_count;
} tgd_piece;

typedef struct {
  uint64_t epoch, pair;
} tgd_handle;

/* Received rows: `x` [rows, hidden] of `wire`, by local expert; `scales` [rows, ceil(hidden / 128)]
 * or NULL; `experts`, `counts` [local]: the experts of replicas that have pieces here, and their
 * rows. After an overflow `wanted` is more than `rows`. */
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

/* Connects to future members. TG_DISCONNECTED names the missing ones, with the reasons. */
tg_code tgd_prepare(tgd_buffer* buffer, const tgd_member* members, size_t count, size_t member_size,
                    int timeout_ms, tg_error* error);
/* Ranks are indexes in the list (only names and generations are used). `pieces`: of all layers, in
 * order of layer, expert and alternative. */
tg_code tgd_update_members(tgd_buffer* buffer, uint64_t epoch, const tgd_member* members,
                           size_t count, size_t member_size, const tgd_piece* pieces,
                           size_t piece_count, size_t piece_size, tg_error* error);
tg_code tgd_ended(tgd_buffer* buffer, const char* name, uint64_t generation, tg_error* error);

/* x [count, hidden], experts and weights [count, top_k]; kept until tgd_receive returns TG_OK. */
tg_code tgd_send(tgd_buffer* buffer, uint32_t layer, uint32_t count, const void* x,
                 const int32_t* experts, const float* weights, tgd_handle* handle, tg_error* error);
/* TG_AGAIN, only without `wait`: not all data has arrived. */
tg_code tgd_receive(tgd_buffer* buffer, const tgd_handle* handle, int wait, tgd_packed* packed,
                    tg_error* error);
/* [rows, hidden], BF16 if sums are, else F32. */
tg_code tgd_next_combine_buffer(tgd_buffer* buffer, const tgd_handle* handle, void** outputs,
                                tg_error* error);
tg_code tgd_send_back(tgd_buffer* buffer, const tgd_handle* handle, const void* outputs,
                      tg_error* error);
/* y [count, hidden] of sums. TG_AGAIN, only without `wait`: not all data has arrived. */
tg_code tgd_finish(tgd_buffer* buffer, const tgd_handle* handle, int wait, void* y,
                   tg_error* error);

/* The contributions that are missing in the y of the last finished pair. */
size_t tgd_missing(const tgd_buffer* buffer, const tgd_contribution** out);
/* [ranks], 0: masked. tgd_cause and tgd_found return the reason, as text, and as agents and the
 * operator report it. tgd_found returns 0 and leaves *out unchanged if the rank is not masked.
 * out->doing is 0 between pairs. */
size_t tgd_active_ranks(const tgd_buffer* buffer, const uint8_t** out);
const char* tgd_cause(const tgd_buffer* buffer, uint32_t rank);
int tgd_found(const tgd_buffer* buffer, uint32_t rank, tg_missed* out);
/* The caller knows that the rank is lost: this rank no longer waits for it. */
tg_code tgd_mask(tgd_buffer* buffer, uint32_t rank, const char* cause, tg_error* error);
/* "shared memory", "TCP", "here", "none". */
const char* tgd_path(const tgd_buffer* buffer, uint32_t rank);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_DISPATCH_H_ */
