/* vector.h - what the entry points of threadpool_vector.h share.
 *
 * Depends on: vector_kernels.h, base/, threadpool.h. Used by: vector.c, vector_top.c. [any] thread.
 */
#ifndef TP_API_VECTOR_H
#define TP_API_VECTOR_H

#include "api/vector_kernels.h"
#include "base/atomic.h"
#include "base/error.h"
#include "threadpool.h"

/* tp_say, of which the analysers do not know that it returns the code. */
#define TP_VECTOR_WRONG(...) (tp_say(ERR_INVALID_ARGUMENT, __VA_ARGS__), ERR_INVALID_ARGUMENT)

/* A matrix that was checked, and what is asked of its rows. */
typedef struct tp_rows tp_rows;
struct tp_rows {
  const tp_kernels *kernels;
  float *data;
  int64_t rows, dim, stride;
  const float *query;
  double query_square; /* of its norm; for cosines */
  float (*score)(const tp_rows *r, int64_t i);
  float *out;
};

/* ERR_INVALID_ARGUMENT, and what is wrong was said. A query that is not wanted: m->data. */
int tp_vector_check(tp_rows *r, const threadpool_matrix *m, const float *query);
/* Sets `score` by THREADPOOL_DOT and so on; ERR_INVALID_ARGUMENT as above. */
int tp_vector_measure(tp_rows *r, int metric);

/* A loop over [0, n), on as many threads as the pool has workers; the caller is one of them. (threadpool_for would make
 * it one more than there are processors, and of two that share one the slower is waited for. Nor is it shared piece by
 * piece from one counter: then every thread comes past all the memory. Each took a third longer, measured on 31 MB and
 * two processors.) Each thread has an acc, zeroes at first; merge, which may be
 * NULL, adds one to another. Which of the pieces it holds is open: the result must not depend on it. */
enum { TP_LOOP_ACC = 64 };
typedef void (*tp_loop_fn)(int64_t begin, int64_t end, void *acc, void *arg);
typedef struct tp_loop {
  int64_t n;
  tp_loop_fn body;
  void (*merge)(void *acc, void *right, void *arg);
  void *arg;
} tp_loop;

/* Run it: here, in one piece, if there is no pool or so few floats. acc, TP_LOOP_ACC bytes of zeroes, gets what was
 * merged; NULL without merge. */
int tp_vector_loop(threadpool_t *pool, tp_loop *l, int64_t floats_each, void *acc);

#endif
