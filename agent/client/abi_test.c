/* The headers are C: they compile as C, the shared library resolves their declarations, and callers
 * of other versions work with it. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tangram/client.h"
#include "tangram/kv_format.h"
#include "tangram/kv_plan.h"

/* The layout of version 1, fixed for good, on 64-bit machines. New members follow these. */
_Static_assert(sizeof(tg_error) == 512 && offsetof(tg_error, message) == 12, "tg_error");
_Static_assert(offsetof(tg_options, cuda_driver) == 64 && offsetof(tg_options, slab_formats) == 60,
               "tg_options");
_Static_assert(offsetof(tg_options, settings) == 72, "tg_options");
_Static_assert(offsetof(tg_model, platform) == 176 &&
                   offsetof(tg_model, kv_head_token_bytes) == 148,
               "tg_model");
_Static_assert(sizeof(tg_section) == 16, "tg_section");
_Static_assert(sizeof(tg_maps) == 128 && offsetof(tg_maps, group_size) == 120, "tg_maps");
_Static_assert(sizeof(tg_event) == 64 && offsetof(tg_event, target) == 48, "tg_event");
_Static_assert(sizeof(tg_engine_stats) == 48, "tg_engine_stats");
_Static_assert(sizeof(tg_vote) == 16, "tg_vote");
_Static_assert(sizeof(tg_kv_manifest) == 144, "tg_kv_manifest");
_Static_assert(sizeof(tg_kv_planned) == 144, "tg_kv_planned");
_Static_assert(sizeof(tg_kv_format) == 96, "tg_kv_format");
_Static_assert(sizeof(tg_kv_page_copy) == 28, "tg_kv_page_copy");
_Static_assert(sizeof(tg_kv_byte_moves) == 40, "tg_kv_byte_moves");
/* No padding after the last member: a new member must make the struct longer. */
#define WHOLE(type, last) \
  _Static_assert(offsetof(type, last) + sizeof(((type*)0)->last) == sizeof(type), #type)
WHOLE(tg_error, message);
WHOLE(tg_options, settings);
WHOLE(tg_model, page_bytes);
WHOLE(tg_maps, group_size);
WHOLE(tg_event, pause_steps);
WHOLE(tg_engine_stats, waiting);
WHOLE(tg_kv_manifest, request_size);
WHOLE(tg_kv_planned, local_bytes);
WHOLE(tg_kv_format, whole_page_bytes);
WHOLE(tg_kv_page_copy, tokens);
WHOLE(tg_kv_byte_moves, bytes);

#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) {                                             \
      fprintf(stderr, "abi_test.c:%d: %s\n", __LINE__, #condition); \
      return 1;                                                     \
    }                                                               \
  } while (0)

static int attach(void) {
  tg_error error = TG_INIT(tg_error);
  tg_client* client = NULL;
  tg_options options = TG_INIT(tg_options);
  options.socket_path = "/nowhere/agent.sock";
  options.token = "t";
  CHECK(strlen(tg_version()) > 0);
  CHECK(tg_attach(&options, &client, &error) == TG_DISCONNECTED && client == NULL);
  CHECK(error.code == TG_DISCONNECTED);
  CHECK(strstr(error.message, "/nowhere/agent.sock") != NULL);
  CHECK(tg_attach(NULL, &client, &error) == TG_INVALID);
  CHECK(tg_attach(&options, &client, NULL) == TG_DISCONNECTED);
  CHECK(tg_attach(&options, NULL, &error) == TG_INVALID);
  options.slab_formats = 64;
  CHECK(tg_attach(&options, &client, &error) == TG_INVALID);
  CHECK(strstr(error.message, "slab_formats") != NULL);
  return 0;
}

/* An engine built when tg_options ended after the token: the rest is not read. */
static int older_caller(void) {
  tg_error error = TG_INIT(tg_error);
  tg_client* client = NULL;
  tg_options options;
  memset(&options, 0xff, sizeof options); /* invalid pointers */
  options.struct_size = offsetof(tg_options, token) + sizeof options.token;
  options.socket_path = "/nowhere/agent.sock";
  options.token = "t";
  CHECK(tg_attach(&options, &client, &error) == TG_DISCONNECTED);
  options.struct_size = offsetof(tg_options, token);
  CHECK(tg_attach(&options, &client, &error) == TG_INVALID);
  CHECK(strstr(error.message, "tg_options.struct_size is 16") != NULL);
  options.struct_size = 0;
  CHECK(tg_attach(&options, &client, &error) == TG_INVALID);
  return 0;
}

/* An engine that was built with future headers. */
static int newer_caller(void) {
  struct {
    tg_options known;
    const char* more;
  } options;
  struct {
    tg_error known;
    char more[64];
  } error;
  tg_client* client = NULL;
  memset(&options, 0, sizeof options);
  options.known.struct_size = sizeof options;
  options.known.socket_path = "/nowhere/agent.sock";
  options.known.token = "t";
  options.more = "unknown here";
  memset(&error, 'x', sizeof error);
  error.known.struct_size = sizeof error;
  CHECK(tg_attach(&options.known, &client, &error.known) == TG_DISCONNECTED);
  CHECK(memchr(error.known.message, 0, sizeof error.known.message) != NULL);
  CHECK(error.more[0] == 'x' && error.known.struct_size == sizeof error);
  return 0;
}

/* A message is cut to the available room, and always terminated. */
static int shorter_error(void) {
  tg_error error;
  tg_client* client = NULL;
  memset(&error, 'x', sizeof error);
  error.struct_size = offsetof(tg_error, message) + 8;
  CHECK(tg_attach(NULL, &client, &error) == TG_INVALID);
  CHECK(strcmp(error.message, "tg_opti") == 0 && error.message[8] == 'x');
  error.struct_size = offsetof(tg_error, message) + 1; /* no room for a character */
  CHECK(tg_attach(NULL, &client, &error) == TG_INVALID && error.message[0] == 't');
  error.struct_size = 0;
  error.code = TG_OK;
  CHECK(tg_attach(NULL, &client, &error) == TG_INVALID && error.code == TG_OK);
  return 0;
}

/* One request of two blocks moves from rank 0 to a rank that stays: a complete plan in C. */
static int kv_plan(void) {
  const uint32_t zero[] = {0}, bounds[] = {0, 2}, blocks[] = {5, 6};
  const tg_attention_group group = {1, zero, bounds};
  const tg_kv_layer layer = {1, &group};
  const tg_kv_strip held[] = {{0, 5, 0, 0, 1, 3, 1}, {0, 6, 0, 0, 1, 4, 1}};
  const tg_kv_rank rank = {8, 6, 2, held};
  const int32_t stays[] = {0};
  const tg_kv_request request = {"a", 0, 20, 32, 2, blocks};
  tg_error error = TG_INIT(tg_error);
  tg_kv_manifest in = TG_INIT(tg_kv_manifest);
  const tg_kv_planned* plan = NULL;
  in.query_heads = 2;
  in.kv_heads = 1;
  in.block_tokens = 16;
  in.head_token_bytes = 64;
  in.layers = 1;
  in.old_groups = in.new_groups = &layer;
  in.layer_size = sizeof layer;
  in.group_size = sizeof group;
  in.old_ranks = 1;
  in.new_of_old = stays;
  in.ranks = &rank;
  in.rank_size = sizeof rank;
  in.strip_size = sizeof held[0];
  in.new_ranks = 1;
  in.requests = 1;
  in.request = &request;
  in.request_size = sizeof request;
  CHECK(tg_kv_plan(&in, &plan, &error) == TG_OK);
  CHECK(TG_HAS(tg_kv_planned, plan, local_bytes) && plan->requests_moved == 0);
  CHECK(plan->requests == 1 && strcmp(plan->request->id, "a") == 0);
  CHECK(plan->moves == 0 && plan->kept_strips == 2 && plan->freed_strips == 0);
  CHECK(TG_AT(tg_kv_kept, plan->kept, plan->kept_size, 1)->page == 4);
  tg_kv_plan_free(plan);
  tg_kv_plan_free(NULL);

  plan = NULL;
  in.request_size = sizeof request - 1;
  CHECK(tg_kv_plan(&in, &plan, &error) == TG_INVALID && plan == NULL);
  CHECK(strstr(error.message, "requests are") != NULL);
  in.request_size = sizeof request;
  in.struct_size = offsetof(tg_kv_manifest, request_size);
  CHECK(tg_kv_plan(&in, &plan, &error) == TG_INVALID);
  CHECK(strstr(error.message, "tg_kv_manifest.struct_size") != NULL);
  return 0;
}

/* A block of two layers of latents, from a rank with more blocks. */
static int kv_format(void) {
  tg_error error = TG_INIT(tg_error);
  tg_kv_format mine = TG_INIT(tg_kv_format), theirs;
  const tg_kv_format* sources[2] = {NULL, &theirs};
  tg_kv_page_copy copy = {1, 0, 0, 0, 0, 2, 5};
  const tg_kv_byte_moves* moves = NULL;
  mine.layers = 2;
  mine.blocks = 10;
  mine.heads = 1;
  mine.block_tokens = 16;
  mine.element = TG_KV_BF16;
  mine.key_width = 576;
  mine.token_stride = 2 * 576;
  mine.block_stride = 16 * mine.token_stride;
  mine.layer_stride = 10 * mine.block_stride;
  theirs = mine;
  theirs.blocks = 12;
  theirs.layer_stride = 12 * theirs.block_stride;
  CHECK(tg_kv_format_check(&mine, 2 * mine.layer_stride, &error) == TG_OK);
  CHECK(tg_kv_format_check(&mine, 2 * mine.layer_stride - 1, &error) == TG_INVALID);
  CHECK(strstr(error.message, "region") != NULL);
  copy.source_page = tg_kv_page(&theirs, 0, 11, 0);
  copy.source_stride = 12;
  copy.target_page = tg_kv_page(&mine, 0, 3, 0);
  copy.target_stride = 10;
  CHECK(tg_kv_byte_moves_of(sources, 2, &mine, &copy, 1, sizeof copy, &moves, &error) == TG_OK);
  CHECK(TG_HAS(tg_kv_byte_moves, moves, bytes) && moves->moves == 2 && moves->bytes == 11520);
  CHECK(TG_AT(tg_kv_move, moves->move, moves->move_size, 1)->target_offset ==
        mine.layer_stride + 3 * mine.block_stride);
  tg_kv_byte_moves_free(moves);
  tg_kv_byte_moves_free(NULL);

  moves = NULL;
  copy.source_rank = 0;
  CHECK(tg_kv_byte_moves_of(sources, 2, &mine, &copy, 1, sizeof copy, &moves, &error) ==
        TG_INVALID);
  CHECK(strstr(error.message, "rank 0 has none") != NULL && moves == NULL);
  mine.struct_size = offsetof(tg_kv_format, whole_page_bytes);
  CHECK(tg_kv_format_check(&mine, 0, &error) == TG_INVALID);
  CHECK(strstr(error.message, "tg_kv_format.struct_size is 88") != NULL);
  return 0;
}

int main(void) {
  return attach() || older_caller() || newer_caller() || shorter_error() || kv_plan() ||
         kv_format();
}
