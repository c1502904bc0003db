/* The kit for engines (agent/engine/README.md) for any language: what a rank does beside computing.
 *
 * tge_open attaches to the agent and listens for other engines and for gateways. The engine makes
 * itself from tg_get_model(tge_client(...)) (client.h; this library has all of it), then calls
 * tge_run, which takes steps in the calling thread until tge_stop and calls back from it alone.
 *
 * For engines whose requests have all their KV on one rank (attention by data), in blocks of their
 * own numbering, alike in all layers. Experts may be anywhere: a step is computed by all ranks at
 * once, and tge_exchange carries rows between them.
 *
 * Structs begin with struct_size, which who allocates them sets; members are only added at the end
 * (client.h, "Versions").
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
  const char* advertise;    /* host that others reach this one at; NULL: that of serve_listen */
  const char* tls_ca;       /* needed; PEM files */
  const char* tls_cert;
  const char* tls_key;
  int insecure_fabric;    /* mesh in plain TCP */
  const char* ready_file; /* JSON with the real endpoints, once attached; NULL: none */
  uint32_t block_tokens;  /* needed; positions of a KV block */
  uint32_t slab_formats;  /* TG_SLAB_* or'ed */
  int even_shards_only;
  uint32_t max_peer_timeout_ms, min_peer_timeout_ms; /* of a peer; 0: 10000 and 1000 */
  uint32_t idle_pause_ms; /* longest pause of a world without work; 0: 4 */
  const char* log_level;  /* NULL: info */
  uint32_t min_step_ms;   /* a step with work takes at least so long; 0: as long as it takes */
  const char* fault_dir;  /* for tests: a directory that arms faults meanwhile; NULL: none */
  const char* settings;   /* as in tg_options; NULL: none */
  /* A flip whose KV is not copied ahead yet waits for it at most so long, while steps go on; 0:
   * 1000; below: nothing is copied ahead. */
  int32_t kv_ahead_ms;
} tge_options;

/* TG_OK, TG_REFUSED (the request or the layout, why says so), TG_NO_ROOM; of tge_exchange and of
 * compute TG_AGAIN: the step is given up, since a peer is gone or this rank was left out. */
tg_code tge_open(const tge_options* options, tge_engine** out, tg_error* error);
void tge_close(tge_engine* engine);
/* Owned by the engine. Its calls of the gate, of KV and of polling are the kit's. */
tg_client* tge_client(tge_engine* engine);

/* A request as a gateway submits it. From min_tokens on only what backend.can names is asked for; 0
 * is off. */
typedef struct {
  size_t struct_size;
  const char* request;
  const char* gateway;
  const uint32_t* prompt;
  size_t prompt_count;
  uint32_t max_tokens; /* of the answer, `generated` ones too */
  float temperature, top_p;
  uint64_t seed;
  const uint32_t* stop_tokens;
  size_t stop_count;
  const char* cache_salt; /* what is cached of it is for requests of the same salt alone; "": for
                           * all that have none */
  /* So many of the prompt's last tokens are of the answer, which goes on after them as if they had
   * been chosen here: penalties, min_tokens and the numbers drawn by chance count them. */
  uint32_t generated;
  uint32_t min_tokens; /* no stop token is chosen before the answer has so many */
  uint32_t top_k;
  float min_p, presence_penalty, frequency_penalty, repetition_penalty;
  const uint32_t* bias_tokens; /* `bias` is added to the logits of these */
  const float* bias;
  size_t bias_count;
  int32_t logprobs; /* of so many likeliest tokens beside the chosen one; below 0: of none */
} tge_submit;

/* A request with its KV, as it is told at a flip and comes to another rank. */
typedef struct {
  size_t struct_size;
  const char* request;
  const char* gateway;
  int running;            /* else it waits, and has no KV */
  uint32_t computed;      /* positions whose KV is there, in all sets. Drafts may lag: what a block
                           * below it has is not written again without another generation, so
                           * `progress` says what the last set has, and `manifest` may say more */
  uint32_t reserved;      /* most positions that it may come to */
  const uint32_t* blocks; /* of the rank that has it, in order of position */
  size_t block_count;
  const void* state; /* the engine's own: tokens, sampling */
  size_t state_size;
  /* Of its KV: another one as soon as a block of it that was full may be written again, since the
   * request was put off and gave its blocks back. Any numbers; that they differ counts. */
  uint32_t generation;
} tge_request;

/* KV beside that of the model's layers, of the same blocks: layers that guess further tokens (a
 * draft model, or a head of drafts), which have a shape and a dtype of their own. Block b of its
 * layer l is block_bytes at offset + l * layer_stride + b * block_stride. */
typedef struct {
  uint64_t layers, offset, layer_stride, block_stride, block_bytes;
} tge_kv_set;

/* Where blocks lie in the KV region: block b of layer l of the model is block_bytes at
 * offset + l * layer_stride + b * block_stride. */
typedef struct {
  size_t struct_size;
  uint64_t offset, layer_stride, block_stride, block_bytes;
  uint32_t blocks, free_blocks;
  /* At most TGE_MORE_SETS further sets, set_size (sizeof(tge_kv_set)) apart; what they point at
   * stays until kv_layout is asked again. A block of a request is one of every set: what says
   * "blocks" or "KV" here means all. All engines of a world have the same, but for where they lie.
   * The kit allocates this struct: where its struct_size ends before set_size it carries no other
   * set, and an engine that has one must not run. */
  const tge_kv_set* sets;
  size_t set_count, set_size;
} tge_kv_layout;

enum { TGE_MORE_SETS = 7 };

typedef struct tge_manifest tge_manifest;
/* Within backend.manifest and backend.progress alone. Copies. As tge_emit and tge_refuse, it ends
 * the process if there is no memory: what it could not take would be lost. */
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

  /* A request; tge_refuse says why not. */
  void (*submit)(void* self, const tge_submit* submit);
  /* 1: it was here, and is no more. */
  int (*cancel)(void* self, const char* request);
  void (*measure)(void* self, tg_engine_stats* stats);
  /* Whether the target can be computed here: TG_OK, or TG_REFUSED. */
  tg_code (*fits)(void* self, const tg_maps* target, int repair, tg_error* why);
  /* Rows (tokens) of the next step here; *work: something is to be done, or waits. Before the
   * words are exchanged: a flip may follow instead of compute. */
  void (*announce)(void* self, uint64_t step, uint64_t* rows, int* work);
  /* The step, also if this rank has no rows of its own. TG_AGAIN if an exchange or tge_may_emit
   * said so: nothing was emitted, and the step is as if it had not been. */
  tg_code (*compute)(void* self, const tge_step* step, tg_error* why);
  void (*kv_layout)(void* self, tge_kv_layout* out);
  /* All requests here, by tge_manifest_add: running first. */
  void (*manifest)(void* self, tge_manifest* out);
  /* A request comes here: blocks for its block_count blocks, whose KV the kit brings after that, or
   * has brought into those that were reserved for it. It is not to run before `enter`. TG_OK,
   * TG_NO_ROOM. */
  tg_code (*adopt)(void* self, const tge_request* request, uint32_t* blocks, tg_error* why);
  /* The flip is off: what was adopted since the last enter goes. */
  void (*drop)(void* self);
  /* The request went elsewhere with its KV: not a word to its gateway. */
  void (*gone)(void* self, const char* request);
  /* The layout of tg_maps_current is in force. */
  tg_code (*enter)(void* self, uint64_t epoch, tge_entry entry, tg_error* why);
  /* Out of every world: no requests, no weights. What is reserved stays so. */
  void (*leave)(void* self);

  /* KV ahead of a flip, all three or none: without them all KV is brought in the flip. The kit
   * copies full blocks of requests that will come here while steps go on.
   *
   * What runs here, by tge_manifest_add, at each boundary while a flip is prepared: as manifest,
   * but gateway and state may be NULL. */
  void (*progress)(void* self, tge_manifest* out);
  /* `count` blocks more, for a request that will perhaps come: nobody else writes to them until it
   * is adopted, with these blocks for its first ones in the order in which they were given, or
   * unreserved. TG_OK; TG_NO_ROOM: nothing is reserved beside what was. Its name is no request's
   * until then: one may be submitted under it. */
  tg_code (*reserve)(void* self, const char* request, uint32_t* blocks, size_t count,
                     tg_error* why);
  /* It does not come. Also of a rank that left. */
  void (*unreserve)(void* self, const char* request);

  /* Members of tge_submit from min_tokens on that are honoured, by their names in
   * tangram/v1/serve.proto, with blanks between; NULL: none. A request for another is refused. */
  const char* can;
} tge_backend;

/* Takes steps until tge_stop. Anything but TG_OK: this rank can serve no longer. */
tg_code tge_run(tge_engine* engine, const tge_backend* backend, tg_error* error);
/* Any thread, also a signal handler. */
void tge_stop(tge_engine* engine);

/* --- within compute --- */

typedef struct {
  const void* data;
  size_t size;
} tge_bytes;

/* All to all: send[r] goes to rank r, recv[r] is what r sent here; world_size entries each. Every
 * rank calls it with the same sequence numbers, from 1, in the same order. What recv points at
 * stays until the next exchange. TG_AGAIN: see above. */
tg_code tge_exchange(tge_engine* engine, uint64_t sequence, const tge_bytes* send, tge_bytes* recv,
                     tg_error* error);

/* --- within compute: rows to their experts, and the results back (agent/engine/rows) ---
 *
 * In each layer with experts every rank calls tge_dispatch with its own rows, also with none,
 * computes what came, and calls tge_combine. Sums have the order of ranks, whatever came first.
 * Sequence numbers are the kit's, apart from those of tge_exchange. */

/* A run of granules of an expert that lies on this rank. A replica is one copy of an expert
 * (a redundant copy): one id for all that a rank has of it. */
typedef struct {
  const void* data;
  uint32_t replica; /* as in tge_dispatched.replicas */
  uint32_t expert;
  uint32_t granule_start, granule_count;
} tge_piece;

/* Those of a model layer in the layout in force, in order of replicas; they stay until the next
 * enter or leave. TG_INVALID: a layer without experts, or no layout. Also outside of compute, from
 * enter on. */
tg_code tge_pieces(const tge_engine* engine, uint32_t layer, const tge_piece** out, size_t* count,
                   size_t* piece_size, tg_error* error);

typedef enum { TGE_F32 = 1, TGE_BF16 = 2 } tge_element;

typedef struct {
  size_t struct_size;
  uint32_t layer;   /* of the model */
  uint32_t element; /* of x and as it travels; the same in all calls of all ranks */
  uint32_t rows, top_k;
  const void* x;         /* [rows, hidden] */
  const int32_t* expert; /* [rows, top_k], of the model's experts */
  const float* weights;  /* [rows, top_k] */
  /* [world_size]: 0 for ranks that take no part, the same at all that do; NULL: all do. */
  const uint8_t* active;
} tge_rows;

/* What is to be computed here, of all ranks: result i is the sum, over k and the pieces here of
 * replicas[i][k] (-1: none), of weights[i][k] * expert(x[i]). Stays until the next dispatch. */
typedef struct {
  size_t struct_size;
  uint32_t rows, top_k;
  const float* x;          /* [rows, hidden] */
  const int32_t* replicas; /* [rows, top_k] */
  const float* weights;    /* [rows, top_k] */
} tge_dispatched;

/* TG_AGAIN: see above; also if an expert has no replica without a rank that takes no part. */
tg_code tge_dispatch(tge_engine* engine, const tge_rows* rows, tge_dispatched* arrived,
                     tg_error* error);
/* results [arrived.rows, hidden], of what the last dispatch brought; y [rows, hidden], of the rows
 * that it was given, is written. Once after each tge_dispatch, else TG_INVALID. */
tg_code tge_combine(tge_engine* engine, const float* results, float* y, tg_error* error);

/* Before the first tge_emit of a step. TG_AGAIN: this rank was left out. */
tg_code tge_may_emit(tge_engine* engine, tg_error* error);
/* `position`: absolute, the first generated token has that of the prompt's length. `finish`: 0 goes
 * on, 1 length, 2 stop, 3 cancelled. */
void tge_emit(tge_engine* engine, const char* gateway, const char* request, uint32_t position,
              uint32_t token, int finish);
/* Natural logarithms of probabilities: of the chosen token, then of the likeliest, the best first.
 */
typedef struct {
  size_t struct_size;
  const uint32_t* tokens;
  const float* values;
  size_t count;
  uint32_t rank; /* of the chosen token, from 1 */
} tge_logprobs;
/* As tge_emit, for a request that asked for them. */
void tge_emit_logprobs(tge_engine* engine, const char* gateway, const char* request,
                       uint32_t position, uint32_t token, int finish, const tge_logprobs* logprobs);
/* `code`: 1 invalid, 2 busy, 3 not ready, 4 running already. Also outside of compute. */
void tge_refuse(tge_engine* engine, const char* gateway, const char* request, int code,
                const char* message);

/* --- what is cached, for gateways; from tge_run's thread ---
 *
 * Gateways send a request to a rank that has its beginning. A block is told by the hash of all
 * tokens up to its end: tge_prefix_after of the hash before it, from tge_prefix_of_salt on, for
 * block_tokens tokens at a time. A hint: what is wrong in it costs time. Who tells nothing gets
 * requests by load alone. */
uint64_t tge_prefix_of_salt(const char* cache_salt);
uint64_t tge_prefix_after(uint64_t before, const uint32_t* tokens, size_t count);
/* These blocks are cached (here: 1), or no more (0). What was told already, or never, is nothing.
 */
void tge_cached(tge_engine* engine, const uint64_t* hashes, size_t count, int here);
/* Nothing is. */
void tge_cached_none(tge_engine* engine);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_ENGINE_H_ */
