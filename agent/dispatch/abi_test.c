/* The header in C: sizes, which Python's structs have too, and calls that are rejected. */
#include <stdio.h>
#include <string.h>

#include "tangram/dispatch.h"

static int failed;

#define EXPECT(what)                                \
  do {                                              \
    if (!(what)) {                                  \
      fprintf(stderr, "%d: %s\n", __LINE__, #what); \
      failed = 1;                                   \
    }                                               \
  } while (0)

int main(void) {
  EXPECT(sizeof(tgd_options) == 96);
  EXPECT(sizeof(tgd_member) == 56);
  EXPECT(sizeof(tgd_piece) == 24);
  EXPECT(sizeof(tgd_handle) == 16);
  EXPECT(sizeof(tgd_packed) == 64);
  EXPECT(sizeof(tgd_contribution) == 12);

  tg_error error = TG_INIT(tg_error);
  tgd_options options = TG_INIT(tgd_options);
  tgd_member self = TG_INIT(tgd_member);
  tgd_buffer* buffer = NULL;
  EXPECT(tgd_open(&options, &self, &buffer, &error) == TG_INVALID);
  EXPECT(strcmp(error.message, "format of rows: hidden is 0: 1 to 1048576") == 0);
  options.hidden = 4;
  options.top_k = 1;
  options.experts = 1;
  options.x = TGD_F32;
  options.wire = TGD_F32;
  options.sums = TGD_F32;
  options.most_tokens = 2;
  options.timeout_us = -1;
  self.name = "alone";
  self.generation = 1;
  self.struct_size = 8;
  EXPECT(tgd_open(&options, &self, &buffer, &error) == TG_INVALID);
  EXPECT(strstr(error.message, "tgd_member.struct_size is 8") != NULL);
  self.struct_size = sizeof self;
  EXPECT(tgd_open(&options, &self, &buffer, &error) == TG_OK);
  if (buffer == NULL) return 1;

  const tgd_piece piece = {0, 0, 0, 0, 0, 1};
  EXPECT(tgd_update_members(buffer, 1, &self, 1, sizeof self, &piece, 1, 4, &error) == TG_INVALID);
  EXPECT(strcmp(error.message, "pieces are 4 bytes apart, want 24 at least") == 0);
  EXPECT(tgd_update_members(buffer, 1, &self, 1, sizeof self, &piece, 1, sizeof piece, &error) ==
         TG_OK);
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, weights[2] = {2, 3};
  const int32_t experts[2] = {0, 0};
  float y[8];
  tgd_handle handle;
  tgd_packed packed = TG_INIT(tgd_packed);
  EXPECT(tgd_send(buffer, 0, 2, x, experts, weights, &handle, &error) == TG_OK);
  EXPECT(tgd_receive(buffer, &handle, 1, &packed, &error) == TG_OK);
  EXPECT(packed.rows == 2 && packed.wanted == 2 && packed.local == 1 && packed.counts[0] == 2);
  EXPECT(tgd_send_back(buffer, &handle, packed.x, &error) == TG_OK);
  EXPECT(tgd_finish(buffer, &handle, 1, y, &error) == TG_OK);
  for (int i = 0; i < 8; ++i) EXPECT(y[i] == x[i] * weights[i / 4]);
  const tgd_contribution* missing;
  EXPECT(tgd_missing(buffer, &missing) == 0);
  const uint8_t* active;
  EXPECT(tgd_active_ranks(buffer, &active) == 1 && active[0] == 1);
  EXPECT(tgd_mask(buffer, 0, "no", &error) == TG_INVALID);
  EXPECT(strcmp(tgd_path(buffer, 0), "here") == 0);
  tgd_close(buffer);
  return failed;
}
