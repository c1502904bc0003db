/* Experts over a table of pieces: the part of a Mixture-of-Experts layer that a rank computes from
 * its agent's memory, without a copy of any weight.
 *
 *   y[row] += sum over k, and over the pieces of expert ids[row][k] in the table, of
 *             weights[row][k] * down(silu(gate x[row]) * (up x[row]))
 *
 * An expert is the sum of its pieces: each is a narrower expert with the same weight. Ids without a
 * piece in the table belong to another rank, and add nothing.
 *
 * Results do not depend on threads nor on the other rows of a call: each y[row] has the same bits
 * in every batch. They differ in the last bits between kernels, and between ways to cut an expert
 * into pieces.
 */
#ifndef TANGRAM_EXPERTS_H_
#define TANGRAM_EXPERTS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Elements of weights. With BF16, x and silu(gate x) * (up x) are rounded to BF16, as in models
 * with BF16 activations; sums are always F32. */
enum { TG_EXPERTS_F32 = 1, TG_EXPERTS_BF16 = 2 };

/* The order of a piece in memory. Granule-major: [granules, 3 (gate, up, down), granule_rows,
 * hidden], down by columns. Row-major: gate and up [rows, hidden], down [hidden, rows], rows =
 * granules * granule_rows, each with its own pitch: also a slice of an expert's tensors as in the
 * checkpoint. */
enum { TG_EXPERTS_GRANULE_MAJOR = 1, TG_EXPERTS_ROW_MAJOR = 2 };

/* Kernels. The default is the last one that this processor supports. AVX512_BF16 is only for BF16:
 * with F32 it means AVX512. */
enum {
  TG_EXPERTS_DEFAULT = 0,
  TG_EXPERTS_PLAIN = 1,
  TG_EXPERTS_AVX512 = 2,
  TG_EXPERTS_AVX512_BF16 = 3
};

typedef struct {
  uint32_t hidden, granule_rows;
  uint32_t element; /* TG_EXPERTS_F32 or _BF16 */
  uint32_t format;  /* TG_EXPERTS_GRANULE_MAJOR or _ROW_MAJOR */
} tg_experts_shape;

typedef struct {
  const void* gate;    /* granule-major: the piece; the other four are 0 then */
  const void* up;      /* row-major */
  const void* down;    /* row-major */
  uint32_t row_pitch;  /* row-major: elements from a row of gate or up to the next */
  uint32_t down_pitch; /* row-major: elements from a row of down to the next */
  uint32_t expert;     /* as in ids */
  uint32_t granules;
} tg_experts_piece;

typedef struct tg_experts tg_experts;

/* Threads and scratch memory, for one call at a time. threads: 1 to 256, including the caller's.
 * NULL: no memory, or threads out of range. */
tg_experts* tg_experts_open(uint32_t threads);
void tg_experts_close(tg_experts* experts);

/* Whether this processor supports a kernel (TG_EXPERTS_PLAIN ...). */
int tg_experts_has(uint32_t kernel);

/* Adds to y. x, y: [rows, hidden]; ids, weights: [rows, top_k]; all contiguous, x and y disjoint.
 * Returns 0; or 1 with the error in `message` (of message_size bytes), and y unchanged. */
int tg_experts_run(tg_experts* experts, const tg_experts_shape* shape,
                   const tg_experts_piece* pieces, size_t count, uint32_t kernel, const float* x,
                   const int32_t* ids, const float* weights, uint32_t rows, uint32_t top_k,
                   float* y, char* message, size_t message_size);

/* y = x weight^T, sums as above: few rows by weights in the layout of a checkpoint, which libraries
 * pack first or read slowly. weight: [n, k] contiguous; x: [rows, k]; y: rows of n, `y_pitch`
 * elements apart; all of `element`. Returns 0; or 1 with the error in `message`, y unchanged. */
int tg_experts_linear(tg_experts* experts, uint32_t element, const void* weight, uint32_t n,
                      uint32_t k, uint32_t kernel, const void* x, uint32_t rows, void* y,
                      size_t y_pitch, char* message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif /* TANGRAM_EXPERTS_H_ */
