/* The engine's side of a world: C ABI, no exceptions cross it, one thread per client. The
 * library has its own thread, which maps and unmaps: no call of a step waits for page tables,
 * and memory that a step reads stays in place. That thread does not exist in a child after fork.
 *
 * Order of calls: tg_attach -> poll until TG_EVENT_FLIPPED (first layout) -> steps. At
 * the boundary of every step: tg_poll, tg_gate_vote, exchange votes with the members
 * in the control exchange, tg_gate_decide; on TG_GATE_GO migrate the KV (tg_kv_plan in
 * kv_plan.h, tg_kv_byte_moves_of in kv_format.h, tg_kv_pull), then tg_gate_commit; at the end
 * of the step tg_step_done.
 *
 * It does not depend on any engine: tensors are byte ranges, KV is byte ranges, pieces
 * are named by (layer, expert, granules).
 *
 * Versions. Members are only ever added at the end of a struct, after its last byte.
 *   - A struct that the caller allocates begins with struct_size, which the caller sets
 *     (TG_INIT does). The library reads and writes only that many bytes, and leaves members
 *     that it does not know alone. A size without the members marked "needed" is TG_INVALID.
 *   - A struct that the library allocates begins with struct_size, which the library sets:
 *     TG_HAS tests for a member.
 *   - The container of an array has the distance between its elements: TG_AT uses it.
 * So an engine runs with an older and with a newer library of the same soname.
 */
#ifndef TANGRAM_CLIENT_H_
#define TANGRAM_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* tg_options options = TG_INIT(tg_options); all other members are zero. */
#ifdef __cplusplus
extern "C++" {
template <typename T>
constexpr T tg_init() {
  T out{};
  out.struct_size = sizeof(T);
  return out;
}
}
#define TG_INIT(type) tg_init<type>()
#else
#define TG_INIT(type) \
  { .struct_size = sizeof(type) }
#endif
/* Element i of an array of `type` whose elements are `size` bytes apart. */
#define TG_AT(type, array, size, i) \
  ((const type*)(const void*)((const char*)(array) + (size_t)(size) * (size_t)(i)))
/* Whether *pointer, which a library filled, has the member: an older library lacks it. */
#define TG_HAS(type, pointer, member) \
  ((pointer)->struct_size >= offsetof(type, member) + sizeof((pointer)->member))

typedef struct tg_client tg_client;

typedef enum {
  TG_OK = 0,
  TG_AGAIN = 1,        /* nothing to do now */
  TG_REFUSED = 2,      /* the agent rejected the call; the error has the reason */
  TG_DISCONNECTED = 3, /* the agent is gone; memory stays mapped */
  TG_INVALID = 4,      /* the caller's mistake, or an agent of another version */
  TG_NO_ROOM = 5,      /* the KV has no room in the target (kv_plan.h): tg_gate_decline */
  TG_LATER = 6,        /* tg_kv_staged: not now */
} tg_code;

/* Any tg_error* may be NULL. If one is too small for a message of one character, the call returns
 * TG_INVALID without a message. */
typedef struct {
  size_t struct_size;
  tg_code code;
  char message[500]; /* always terminated; cut if too long */
} tg_error;

/* The order of a piece's bytes in its slab (tangram.v1.SlabFormat), as bits. */
enum {
  TG_SLAB_GRANULE_MAJOR = 1, /* granule after granule: gate rows, up rows, down columns */
  TG_SLAB_ROW_MAJOR = 2,     /* as in the checkpoint: tg_section after tg_section */
};

/* A part of a granule. A row-major slab of n granules has the sections one after another. Each
 * section has `lines` lines of n * bytes bytes. Granule g of them (the piece's first is 0) is bytes
 * g * bytes to (g + 1) * bytes of each line. gate_proj and up_proj of a piece are one line each, as
 * their rows are adjacent; down_proj has a line for each row. */
typedef struct {
  uint64_t lines;
  uint64_t bytes;
} tg_section;

typedef struct {
  size_t struct_size;
  const char* socket_path; /* needed */
  const char* token;       /* needed; content of the pod's token file */
  uint32_t device;         /* which of the pod's ranks, from 0 */
  uint32_t kv_block_tokens;
  const char* mesh_endpoint; /* address for other engines, host:port */
  const char* frontend;      /* address for gateways, host:port */
  /* The engine's capabilities. The agent rejects layouts beyond them. */
  int even_shards_only;    /* only group sizes that divide the granules */
  int mixed_layouts;       /* layers of different sharding in one step */
  int attention_data_only; /* never a request's heads split over ranks: t = 1 */
  uint32_t slab_formats;   /* TG_SLAB_* or'ed; 0: TG_SLAB_GRANULE_MAJOR */
  /* For memory of a GPU: its driver, as a name that the loader finds or as a path; NULL:
   * libcuda.so.1. */
  const char* cuda_driver;
  /* Settings that must be the same at all engines of a world; an engine with others does not join.
   * "name=value" lines (engine, version, max_batch_tokens, ...). The KV block and the checkpoint
   * are compared without this. NULL: none. */
  const char* settings;
} tg_options;

/* Constant for the life of the client, which owns the pointers. */
typedef struct {
  size_t struct_size;
  const char* world;
  const char* member;
  const char* config_json; /* the model's config.json */
  size_t config_json_size;
  uint32_t layers, moe_layers, hidden, moe_inner, experts, top_k;
  uint32_t query_heads, kv_heads, head_dim;
  uint32_t granule_rows, granules;
  uint64_t granule_bytes, expert_tail_bytes;
  uint32_t dtype; /* tangram.v1.DType */
  uint32_t banks;
  void* kv; /* KV region, read and write */
  uint64_t kv_bytes;
  const void* dense; /* dense region, read only */
  uint64_t dense_bytes;
  uint32_t slab_format;         /* TG_SLAB_* */
  uint32_t kv_head_token_bytes; /* K and V of one token, one KV head, one layer */
  const tg_section* sections;   /* section_size apart; NULL unless slabs are row-major */
  size_t section_count, section_size;
  /* The kind of memory of weights and KV: "host"; "cuda": a GPU's, with addresses of its primary
   * context, which CPUs cannot access. */
  const char* platform;
  uint64_t page_bytes; /* memory is mapped in multiples of this */
} tg_model;

typedef struct {
  const char* name; /* as in the checkpoint */
  uint32_t dtype;   /* tangram.v1.DType */
  uint32_t rank;    /* number of dimensions */
  uint64_t shape[4];
  const void* data; /* row-major, in the dense region; valid once a layout is active */
} tg_tensor;

/* A piece on some rank of the layout. */
typedef struct {
  uint32_t rank;
  uint32_t granule_start;
  uint32_t granule_count;
  const void* data; /* its address if rank is mine, else NULL */
} tg_piece;

/* One expert of one layer: `replicas` copies; copy a is pieces[a * shards .. a * shards + shards),
 * which together hold every granule. */
typedef struct {
  uint32_t replicas;
  uint32_t shards;
  const tg_piece* pieces; /* tg_maps.piece_size apart; those of a layer are adjacent, in order
                             of expert, so that one copy can take them all */
} tg_expert;

typedef struct {
  uint32_t size;                     /* t: ranks in the group */
  const uint32_t* ranks;             /* in position order */
  const uint32_t* query_head_bounds; /* size + 1 */
} tg_attention_group;

typedef struct {
  uint32_t layer;           /* model layer */
  int32_t moe_ordinal;      /* -1: no experts in this layer */
  const tg_expert* experts; /* [experts], tg_maps.expert_size apart; NULL without experts */
  uint32_t attention_groups;
  const tg_attention_group* attention; /* tg_maps.group_size apart */
} tg_layer_map;

/* A layout. Lives until the next-but-one flip; memory of old pieces: until tg_step_done. */
typedef struct {
  size_t struct_size;
  uint64_t epoch;
  uint8_t hash[32];
  int32_t rank; /* mine; -1: not a member */
  uint32_t world_size;
  const char* const* members;   /* [world_size] */
  const char* const* mesh;      /* [world_size] endpoints of the engines */
  const char* const* frontends; /* [world_size] */
  const tg_layer_map* layers;   /* [model.layers], layer_size apart */
  const char* const* pods;      /* [world_size], the pods of the members */
  size_t layer_size, expert_size, piece_size, group_size;
} tg_maps;

typedef enum {
  TG_EVENT_NONE = 0,
  TG_EVENT_PREPARE = 1, /* build the communicator of `target`, then tg_prepared */
  TG_EVENT_ABORT = 2,   /* the attempt has ended; drop its communicator */
  TG_EVENT_FLIPPED = 3, /* the agents flipped: tg_maps_current is new */
} tg_event_kind;

typedef struct {
  size_t struct_size;
  tg_event_kind kind; /* needed */
  uint64_t attempt;   /* needed */
  uint64_t target_epoch;
  int joining, leaving;
  int repair;            /* no engine steps until the agents have flipped it */
  const tg_maps* target; /* PREPARE: piece data pointers are NULL until the flip */
  uint64_t pause_steps;  /* PREPARE: 1: compute no step until the attempt has ended */
} tg_event;

/* The vote of a step: equal votes of all members of the epoch are the only way to flip. Engines
 * send it to each other, so it never changes. */
typedef struct {
  uint64_t epoch; /* current epoch, or the target's when armed */
  uint64_t hash;  /* first 8 bytes of the target hash; 0 when not armed */
} tg_vote;

typedef enum { TG_GATE_STAY = 0, TG_GATE_GO = 1 } tg_gate;

typedef struct {
  uint32_t source_rank;   /* in the current layout (before the flip) */
  uint64_t source_offset; /* in that rank's KV region */
  uint64_t target_offset; /* in mine */
  uint32_t length;
} tg_kv_move;

typedef struct {
  size_t struct_size;
  uint64_t kv_pages, kv_free_pages, kv_reserved_tokens, running, waiting;
} tg_engine_stats;

/* The version of the library, e.g. "1.0.0". */
const char* tg_version(void);

/* Connects, authenticates, maps KV and control. *out is set on TG_OK only. */
tg_code tg_attach(const tg_options* options, tg_client** out, tg_error* error);
void tg_detach(tg_client* client);
const tg_model* tg_get_model(const tg_client* client);
/* Number of dense tensors; *out points at that many, *size bytes apart, in order of name. */
size_t tg_dense_tensors(const tg_client* client, const tg_tensor** out, size_t* size);
/* NULL before the first layout. */
const tg_maps* tg_maps_current(const tg_client* client);

/* Takes the agent's messages. Waits at most timeout_ms (0: not at all). The library maps new slabs
 * and unmaps old ones itself. TG_AGAIN with kind NONE: no event. */
tg_code tg_poll(tg_client* client, int timeout_ms, tg_event* event, tg_error* error);
/* Readable when tg_poll may have an event; for waiting with other descriptors. Never changes. */
int tg_poll_fd(const tg_client* client);
tg_code tg_prepared(tg_client* client, uint64_t attempt, int ok, const char* message,
                    tg_error* error);

/* The vote of this rank for this step; latches if a flip is armed. */
tg_vote tg_gate_vote(tg_client* client);
/* The votes of all members, including this rank, in rank order. STAY unlatches. */
tg_gate tg_gate_decide(tg_client* client, const tg_vote* votes, size_t count);
/* After GO: this rank cannot flip (KV does not fit). All members must decide so on the same data,
 * or the world breaks. Unlatches. */
void tg_gate_decline(tg_client* client, const char* reason);
/* Abandons the step for good: an exchange broke. Withdraws the vote, unless keep_vote: this rank
 * has confirmed its KV, and the others may have flipped. From now on only events count, until a
 * FLIPPED event after which tg_stopped is 0. Call it once per abandoned step: the agents may flip a
 * stopped rank before the engine learns of it, and a second call would stop it in the new epoch. */
void tg_stop(tg_client* client, int keep_vote);
int tg_stopped(const tg_client* client);
/* Why a rank of the layout is reported as lost when a step is abandoned. */
typedef enum {
  TG_GONE = 1,    /* its connection closed */
  TG_SILENT = 2,  /* no message and no heartbeat within the timeout */
  TG_STUCK = 3,   /* alive, but waited too long for another rank */
  TG_HOSTILE = 4, /* its message is malformed */
  TG_GAVE_UP = 5, /* it reported that it abandoned the step, or is in another one */
  TG_TOLD = 6,    /* another rank reported that it is gone */
} tg_cause;
/* The operation with it. */
typedef enum {
  TG_IN_VOTE = 1,
  TG_IN_DISPATCH = 2,
  TG_IN_COMBINE = 3,
  TG_IN_EXCHANGE = 4, /* of a step, made by the engine itself */
  TG_IN_FLIP = 5,
} tg_doing;
typedef struct {
  uint32_t rank;
  uint32_t cause, doing; /* tg_cause, tg_doing */
  uint32_t layer;        /* in dispatch and combine: the ordinal among the layers with experts */
} tg_missed;
/* Before tg_stop: the ranks because of which the step is abandoned, for the agent and the operator.
 * Of more than 8 the first are reported. Elements are missed_size apart (sizeof(tg_missed)). */
tg_code tg_missing(tg_client* client, const tg_missed* missed, size_t count, size_t missed_size,
                   tg_error* error);
/* While stopped: the ranks of the layout that have no connection now. */
void tg_unreachable(tg_client* client, const uint32_t* ranks, size_t count);

/* After GO, with the KV in place. On TG_OK tg_maps_current is the new layout. */
tg_code tg_gate_commit(tg_client* client, tg_error* error);
/* The same for an engine whose steps run on a device and outlast their calls. Memory of the
 * previous layout stays mapped until done_fd is readable (an eventfd that the device's stream
 * writes, a sync file; duplicated). The transition does not end before that. done_fd must stay
 * readable. */
tg_code tg_gate_commit_after(tg_client* client, int done_fd, tg_error* error);
/* For a joiner, after it saw a member of the target epoch step in it. Waits until the agent has the
 * permit, then commits. */
tg_code tg_gate_join(tg_client* client, int timeout_ms, tg_error* error);

/* Copies KV from other ranks into mine; returns when all of it is here. TG_AGAIN after two minutes:
 * it continues, and tg_kv_staged reports its end. Sources must not change before every rank has
 * returned. Moves are move_size apart (sizeof(tg_kv_move)). *bytes may be NULL. */
tg_code tg_kv_pull(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                   uint64_t* bytes, tg_error* error);

/* The same without waiting, for a part at a time, so that an engine can send heartbeats to its
 * peers meanwhile. tg_kv_staged reports its end. One at a time: TG_INVALID before the previous one
 * has ended. The agent may write to the targets until then, even if the attempt ends. */
tg_code tg_kv_begin(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                    tg_error* error);
/* The same for KV ahead of a flip, while steps continue: from TG_EVENT_PREPARE on. The source may
 * change meanwhile; use a copy only if its generation shows that it did not. */
tg_code tg_kv_stage(tg_client* client, const tg_kv_move* moves, size_t count, size_t move_size,
                    tg_error* error);
/* The result of the last tg_kv_begin or tg_kv_stage. TG_AGAIN: it is in progress, also after
 * timeout_ms (0: does not wait). Any other code is its end. TG_OK: all KV is here. TG_LATER: no
 * bytes were copied, because steps take longer than the agent allows for copies; call tg_kv_stage
 * again at a later boundary. TG_INVALID: none was in progress. *bytes may be NULL. */
tg_code tg_kv_staged(tg_client* client, int timeout_ms, uint64_t* bytes, tg_error* error);

/* One whole step of the current epoch has ended. */
void tg_step_done(tg_client* client);
/* Counts tokens that this rank, as the source, routed to the expert. Never reset. Any thread. */
void tg_count(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens);
/* Counts tokens that this rank computed with its piece of the expert, whichever rank routed them.
 * These show how even a placement really is. Never reset. Any thread. */
void tg_count_executed(tg_client* client, uint32_t moe_ordinal, uint32_t expert, uint64_t tokens);
/* Reports the figures in the agent's status. Any thread. Members that the caller's struct lacks are
 * 0. */
tg_code tg_report(tg_client* client, const tg_engine_stats* stats, tg_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_CLIENT_H_ */
