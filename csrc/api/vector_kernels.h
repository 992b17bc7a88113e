/* vector_kernels.h - the inner loops of threadpool_vector.h, on the calling thread.
 *
 * There is one set of them for each width of vector registers (vector_template.h); tp_kernels() is the widest this
 * machine has. All sets add the same numbers in the same order, so they agree to the last bit.
 *
 * Depends on: base/. Used by: vector.c, vector_top.c. [any] thread.
 */
#ifndef TP_API_VECTOR_KERNELS_H
#define TP_API_VECTOR_KERNELS_H

#include <stdint.h>

/* What is summed over two vectors a and b, and where it goes. */
typedef enum tp_sum {
  TP_DOT,         /* [0]: a * b */
  TP_DOT_SQUARES, /* [0]: a * b, [1]: a * a */
  TP_SQUARES,     /* [0]: a * a; b is a */
  TP_DISTANCE,    /* [0]: (a - b) * (a - b) */
  TP_SUMS
} tp_sum;

typedef struct tp_kernels {
  const char *name;
  void (*sum[TP_SUMS])(const float *a, const float *b, int64_t n, float out[2]);
  void (*scale)(float *a, int64_t n, float by);
  /* The largest of a[i] * sign, -infinity if there is none; NaN is passed over. sign is 1 or -1. */
  float (*most)(const float *a, int64_t n, float sign);
} tp_kernels;

const tp_kernels *tp_kernels_best(void);
/* For tests: set 0 is there on every machine; NULL: there are not so many, or this machine cannot run it. */
const tp_kernels *tp_kernels_at(int set);

/* The pieces a long vector is summed in: floats inside a block, doubles over the blocks of a chunk, doubles over the
 * chunks. How long a chunk is depends on n alone. */
enum { TP_BLOCK = 8192, TP_CHUNKS_MOST = 256 };
int64_t tp_chunk_length(int64_t n);

typedef struct tp_pair {
  double of[2];
} tp_pair;

/* [begin, end), which lies in one chunk and begins at its beginning. */
tp_pair tp_sum_chunk(const tp_kernels *k, tp_sum what, const float *a, const float *b,
                     int64_t begin, int64_t end);
/* All of it. */
tp_pair tp_sum_all(const tp_kernels *k, tp_sum what, const float *a, const float *b, int64_t n);
/* What tp_sum_all does last: the sum as it is, or, if floats could not hold what was on the way, computed in doubles. */
tp_pair tp_sum_checked(tp_pair sum, tp_sum what, const float *a, const float *b, int64_t n);

/* From a * b, a * a and b * b. */
double tp_cosine_of(double dot, double a, double b);

#endif
