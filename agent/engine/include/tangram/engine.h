/* The kit for engines (agent/engine/README.md) for any language: all work of a rank but computing.
 *
 * tge_open attaches to the agent and listens for other engines and for gateways. The engine
 * initializes itself from tg_get_model(tge_client(...)) (client.h; this library has all of it),
 * then calls tge_run, which takes steps in the calling thread until tge_stop, and calls back only
 * from it.
 *
 * For engines that keep all KV of a request on one rank (data-parallel attention), in blocks with
 * the engine's own numbers, alike in all layers. Experts may be on any rank: all ranks compute a
 * step together, and tge_exchange carries rows between them.
 *
 * Structs begin with struct_size, which the allocating side sets; members are only added at the
 * end (client.h, "Versions").
 */
#ifndef TANGRAM_ENGINE_H_
#define TANGRAM_ENGINE_H_

#include "tangram/client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tge_engine tge_engine;

typedef struct {
  size_t struct_size;
  const char* agent_socket; /* needed */
  const char* token_file;   /* needed; the pod's engine token */
  uint32_t device;          /* which of the pod's ranks, from 0 */
  uint32_t agent_wait_seconds;
  const char* mesh_listen;  /* needed; host:port for other engines, port 0: any */
  const char* serve_listen; /* needed; host:port for gateways */
  const char* advertise;    /* this rank's host for other ranks; NULL: that of serve_listen */
  const char* tls_ca;       /* needed; PEM files */
  const char* tls_cert;
  const char* tls_key;
  int insecure_fabric;    /* mesh in plain TCP */
  const char* ready_file; /* JSON with the real endpoints, once attached; NULL: none */
  uint32_t block_tokens;  /* needed; positions of a KV block */
  uint32_t slab_formats;  /* TG_SLAB_* or'ed */
  int even_shards_only;
  uint32_t max_peer_timeout_ms, min_peer_timeout_ms; /* timeouts for peers; 0: 10000 and 1000 */
  uint32_t idle_pause_ms; /* longest pause between steps of a world without work; 0: 4 */
  const char* log_level;  /* NULL: info */
  uint32_t min_step_ms;   /* minimum duration of a step with work; 0: none */
  const char* fault_dir;  /* for tests: a directory that arms faults at run time; NULL: none */
  const char* settings;   /* as in tg_options; NULL: none */
  /* A flip whose KV is not copied ahead yet waits at most this long for it, while steps continue.
   * 0: 1000; negative: no KV is copied ahead. */
  int32_t kv_ahead_ms;
} tge_options;

/* TG_OK, TG_REFUSED (the request or the layout, with the reason in why), TG_NO_ROOM. From
 * tge_exchange and compute also TG_AGAIN: the step is abandoned, because a peer is gone or this
 * rank was removed. */
tg_code tge_open(const tge_options* options, tge_engine** out, tg_error* error);
void tge_close(tge_engine* engine);
/* Owned by the engine. Only the kit makes its calls of the gate, of KV and of polling. */
tg_client* tge_client(tge_engine* engine);

/* A request as a gateway submits it. From min_tokens on it sets only members that backend.can
 * names; 0 is off. */
typedef struct {
  size_t struct_size;
  const char* request;
  const char* gateway;
  const uint32_t* prompt;
  size_t prompt_count;
  uint32_t max_tokens; /* of the answer, including the `generated` ones */
  float temperature, top_p;
  uint64_t seed;
  const uint32_t* stop_tokens;
  size_t stop_count;
  const char* cache_salt; /* its cached prefix serves only requests with the same salt; "": those
                             without a salt */
  /* This many of the prompt's last tokens belong to the answer, which continues after them as if
   * they had been chosen here: penalties, min_tokens and random draws count them. */
  uint32_t generated;
  uint32_t min_tokens; /* no stop token is chosen before the answer has this many tokens */
  uint32_t top_k;
  float min_p, presence_penalty, frequency_penalty, repetition_penalty;
  const uint32_t* bias_tokens; /* adds `bias` to the logits of these */
  const float* bias;
  size_t bias_count;
  int32_t logprobs; /* for this many likeliest tokens besides the chosen one; negative: none */
} tge_submit;

/* A request with its KV, in a flip's manifest and on its way to another rank. */
typedef struct {
  size_t struct_size;
  const char* request;
  const char* gateway;
  int running;            /* else it waits, and has no KV */
  uint32_t computed;      /* positions whose KV exists, in all sets. Drafts may lag: a block below
                           * it is not written again without another generation, so `progress`
                           * gives the positions of the last set, and `manifest` may give more */
  uint32_t reserved;      /* maximum number of positions */
  const uint32_t* blocks; /* on the rank that has it, in order of position */
  size_t block_count;
  const void* state; /* the engine's own: tokens, sampling */
  size_t state_size;
  /* Of its KV: changes as soon as a full block of it may be written again, because the request was
   * preempted and returned its blocks. Any numbers; only their difference counts. */
  uint32_t generation;
} tge_request;

/* KV besides that of the model's layers, in the same blocks: layers that predict further tokens (a
 * draft model, or a head of drafts), with their own shape and dtype. Block b of its layer l is
 * block_bytes at offset + l * layer_stride + b * block_stride. */
typedef struct {
  uint64_t layers, offset, layer_stride, block_stride, block_bytes;
} tge_kv_set;

/* The place of blocks in the KV region: block b of layer l of the model is block_bytes at offset +
 * l * layer_stride + b * block_stride. */
typedef struct {
  size_t struct_size;
  uint64_t offset, layer_stride, block_stride, block_bytes;
  uint32_t blocks, free_blocks;
  /* At most TGE_MORE_SETS further sets, set_size (sizeof(tge_kv_set)) apart; the memory that they
   * point at stays valid until the next kv_layout. A block of a request is one block of every set:
   * "blocks" or "KV" here means all sets. All engines of a world have the same sets, but perhaps in
   * other places. The kit allocates this struct: if its struct_size ends before set_size it moves
   * no other set, and an engine with one must not run. */
  const tge_kv_set* sets;
  size_t set_count, set_size;
} tge_kv_layout;

enum { TGE_MORE_SETS = 7 };

typedef struct tge_manifest tge_manifest;
/* Only within backend.manifest and backend.progress. Copies. Like tge_emit and tge_refuse, it ends
 * the process if there is no memory: a request that it cannot store would be lost. */
void tge_manifest_add(tge_manifest* manifest, const tge_request* request);

typedef struct {
  size_t struct_size;
  uint64_t epoch, step;
  uint32_t rank, world_size;
  uint64_t rows; /* of this step, of all ranks */
} tge_step;

typedef enum {
  TGE_ENTRY_FRESH = 0,     /* this rank was in no world */
  TGE_ENTRY_UNCHANGED = 1, /* all requests stay */
  TGE_ENTRY_MIGRATED = 2,  /* adopted requests are here, released ones were reported */
  TGE_ENTRY_REPAIRED = 3,  /* a rank died; requests here stay */
} tge_entry;

/* Called from tge_run's thread. `why` may be written where a call can fail. */
typedef struct {
  size_t struct_size;
  void* self;
  uint32_t max_tokens, vocabulary; /* of prompt and answer; for gateways */

  /* Takes a request, or rejects it by tge_refuse. */
  void (*submit)(void* self, const tge_submit* submit);
  /* 1: it was here, and its resources are freed. */
  int (*cancel)(void* self, const char* request);
  void (*measure)(void* self, tg_engine_stats* stats);
  /* Whether the target can be computed here: TG_OK, or TG_REFUSED. */
  tg_code (*fits)(void* self, const tg_maps* target, int repair, tg_error* why);
  /* Rows (tokens) of the next step here; *work: a request is to be computed here, or waits. Called
   * before the vote: a flip may follow instead of compute. */
  void (*announce)(void* self, uint64_t step, uint64_t* rows, int* work);
  /* Computes the step, also if this rank has no rows of its own. TG_AGAIN if an exchange or
   * tge_may_emit returned it: no token was emitted, and the step is undone. */
  tg_code (*compute)(void* self, const tge_step* step, tg_error* why);
  void (*kv_layout)(void* self, tge_kv_layout* out);
  /* All requests here, by tge_manifest_add: running first. */
  void (*manifest)(void* self, tge_manifest* out);
  /* A request moves here. Returns blocks for its block_count blocks. The kit then fetches their KV,
   * or has fetched it into the blocks reserved for the request. It must not run before `enter`.
   * TG_OK, TG_NO_ROOM. */
  tg_code (*adopt)(void* self, const tge_request* request, uint32_t* blocks, tg_error* why);
  /* The flip is abandoned: discards the requests adopted since the last enter. */
  void (*drop)(void* self);
  /* The request moved to another rank with its KV: no message to its gateway. */
  void (*gone)(void* self, const char* request);
  /* The layout of tg_maps_current is active. */
  tg_code (*enter)(void* self, uint64_t epoch, tge_entry entry, tg_error* why);
  /* This rank is in no world: no requests, no weights. Reserved blocks stay reserved. */
  void (*leave)(void* self);

  /* KV ahead of a flip, all three or none: without them all KV is fetched in the flip. While steps
   * continue, the kit copies full blocks of requests that will move here.
   *
   * Adds the running requests, by tge_manifest_add, at each boundary while a flip is prepared: as
   * manifest, but gateway and state may be NULL. */
  void (*progress)(void* self, tge_manifest* out);
  /* Reserves `count` more blocks for a request that may move here. No other request may write to
   * them until it is adopted, with these blocks first and in this order, or unreserved. TG_OK;
   * TG_NO_ROOM: no further block is reserved. Until then no request here has its name: one may be
   * submitted under it. */
  tg_code (*reserve)(void* self, const char* request, uint32_t* blocks, size_t count,
                     tg_error* why);
  /* The request does not move here. Also called on a rank that left. */
  void (*unreserve)(void* self, const char* request);

  /* Members of tge_submit from min_tokens on that are honoured, by their names in
   * tangram/v1/serve.proto, separated by blanks; NULL: none. A request for another one is rejected.
   * */
  const char* can;
} tge_backend;

/* Takes steps until tge_stop. Any result but TG_OK: this rank can serve no longer. */
tg_code tge_run(tge_engine* engine, const tge_backend* backend, tg_error* error);
/* From any thread, also from a signal handler. */
void tge_stop(tge_engine* engine);

/* --- within compute --- */

typedef struct {
  const void* data;
  size_t size;
} tge_bytes;

/* All to all: send[r] goes to rank r, recv[r] is what r sent here; world_size entries each. Every
 * rank calls it with the same sequence numbers, from 1, in the same order. The memory of recv stays
 * valid until the next exchange. TG_AGAIN: see above. */
tg_code tge_exchange(tge_engine* engine, uint64_t sequence, const tge_bytes* send, tge_bytes* recv,
                     tg_error* error);

/* --- within compute: rows to their experts, and the results back (agent/engine/rows) ---
 *
 * In each layer with experts every rank calls tge_dispatch with its own rows, also with none,
 * computes the received rows, and calls tge_combine. Sums have the order of ranks, regardless of
 * the order of arrival. Sequence numbers are the kit's, apart from those of tge_exchange. */

/* A run of granules of an expert on this rank. A replica is one copy of an expert (a redundant
 * copy): all its runs on a rank have the same id. */
typedef struct {
  const void* data;
  uint32_t replica; /* as in tge_dispatched.replicas */
  uint32_t expert;
  uint32_t granule_start, granule_count;
} tge_piece;

/* The pieces of a model layer in the active layout, in order of replicas; valid until the next
 * enter or leave. TG_INVALID: a layer without experts, or no layout. Also outside of compute, from
 * enter on. */
tg_code tge_pieces(const tge_engine* engine, uint32_t layer, const tge_piece** out, size_t* count,
                   size_t* piece_size, tg_error* error);

typedef enum { TGE_F32 = 1, TGE_BF16 = 2 } tge_element;

typedef struct {
  size_t struct_size;
  uint32_t layer;   /* of the model */
  uint32_t element; /* of x and of the messages; the same in all calls of all ranks */
  uint32_t rows, top_k;
  const void* x;         /* [rows, hidden] */
  const int32_t* expert; /* [rows, top_k], of the model's experts */
  const float* weights;  /* [rows, top_k] */
  /* [world_size]: 0 for ranks that take no part, the same at all that do; NULL: all do. */
  const uint8_t* active;
} tge_rows;

/* The rows to compute here, of all ranks: result i is the sum, over k and the pieces here of
 * replicas[i][k] (-1: none), of weights[i][k] * expert(x[i]). Valid until the next dispatch. */
typedef struct {
  size_t struct_size;
  uint32_t rows, top_k;
  const float* x;          /* [rows, hidden] */
  const int32_t* replicas; /* [rows, top_k] */
  const float* weights;    /* [rows, top_k] */
} tge_dispatched;

/* TG_AGAIN: see above; also if every replica of an expert needs a rank that takes no part. */
tg_code tge_dispatch(tge_engine* engine, const tge_rows* rows, tge_dispatched* arrived,
                     tg_error* error);
/* results [arrived.rows, hidden] for the rows of the last dispatch; writes y [rows, hidden] for the
 * rows given to it. One call after each tge_dispatch, else TG_INVALID. */
tg_code tge_combine(tge_engine* engine, const float* results, float* y, tg_error* error);

/* Before the first tge_emit of a step. TG_AGAIN: this rank was removed. */
tg_code tge_may_emit(tge_engine* engine, tg_error* error);
/* `position`: absolute, the first generated token has the prompt's length as position. `finish`: 0
 * not finished, 1 length, 2 stop, 3 cancelled. */
void tge_emit(tge_engine* engine, const char* gateway, const char* request, uint32_t position,
              uint32_t token, int finish);
/* Natural logarithms of probabilities: of the chosen token, then of the likeliest, best first. */
typedef struct {
  size_t struct_size;
  const uint32_t* tokens;
  const float* values;
  size_t count;
  uint32_t rank; /* of the chosen token, from 1 */
} tge_logprobs;
/* As tge_emit, for a request with logprobs. */
void tge_emit_logprobs(tge_engine* engine, const char* gateway, const char* request,
                       uint32_t position, uint32_t token, int finish, const tge_logprobs* logprobs);
/* `code`: 1 invalid, 2 busy, 3 not ready, 4 running already. Also outside of compute. */
void tge_refuse(tge_engine* engine, const char* gateway, const char* request, int code,
                const char* message);

/* --- cached prefixes, for gateways; from tge_run's thread ---
 *
 * Gateways send a request to a rank that has its prefix cached. A block is reported by the hash of
 * all tokens up to its end: tge_prefix_after of the previous block's hash, starting with
 * tge_prefix_of_salt, for block_tokens tokens at a time. A hint: an error in it only costs time. An
 * engine without reports gets requests by load alone. */
uint64_t tge_prefix_of_salt(const char* cache_salt);
uint64_t tge_prefix_after(uint64_t before, const uint32_t* tokens, size_t count);
/* These blocks are cached (here: 1), or no longer (0). Repeated reports are ignored. */
void tge_cached(tge_engine* engine, const uint64_t* hashes, size_t count, int here);
/* No block is cached. */
void tge_cached_none(tge_engine* engine);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_ENGINE_H_ */
