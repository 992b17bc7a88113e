/* threadpool_vector.h - vectors and matrices of floats: dot, cosine, norms, the nearest rows, argmax.
 *
 * Included by threadpool.h. Everything is [any], returns 0 or ERR_INVALID_ARGUMENT, ERR_SHUTDOWN, ERR_MALLOC_FAILED
 * (threadpool_vector_top only), and returns when it is done. As many threads take part as the pool has workers, the
 * calling one among them. `pool` NULL: only the calling one; so with small inputs in any case. The result does not
 * depend on the pool, the number of its workers or how they shared the work, to the last bit.
 *
 * Sums are of floats in 32 places at once, those of long vectors of doubles; what leaves the range of floats on the way
 * is computed again in doubles. The cosine with a vector of zeros is 0. NaN in a vector makes its results NaN.
 */
#ifndef THREADPOOL_VECTOR_H
#define THREADPOOL_VECTOR_H

#include "threadpool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row i is the `dim` floats from data + i * stride. stride 0: dim, the rows lie side by side. Only
 * threadpool_vector_normalise writes to them. */
typedef struct threadpool_matrix {
  float *data; /* may be NULL if there are no floats in it */
  int64_t rows;
  int64_t dim;
  int64_t stride; /* floats from one row to the next: 0, or not less than dim */
} threadpool_matrix;

/* Of two vectors of n floats, the length of one, the cosine of the angle between two. */
THREADPOOL_API int threadpool_vector_dot(threadpool_t *pool, const float *a, const float *b,
                                         int64_t n, double *result);
THREADPOOL_API int threadpool_vector_norm(threadpool_t *pool, const float *a, int64_t n,
                                          double *result);
THREADPOOL_API int threadpool_vector_cosine(threadpool_t *pool, const float *a, const float *b,
                                            int64_t n, double *result);

/* The same for each row, with a query of `dim` floats: out[i] is that of row i. */
THREADPOOL_API int threadpool_vector_dots(threadpool_t *pool, const threadpool_matrix *m,
                                          const float *query, float *out);
THREADPOOL_API int threadpool_vector_norms(threadpool_t *pool, const threadpool_matrix *m,
                                           float *out);
THREADPOOL_API int threadpool_vector_cosines(threadpool_t *pool, const threadpool_matrix *m,
                                             const float *query, float *out);

/* Divide each row by its norm, in place. A row of zeros stays. */
THREADPOOL_API int threadpool_vector_normalise(threadpool_t *pool, const threadpool_matrix *m);

/* What makes a row the nearest: the largest dot product, the largest cosine, the least distance (its score is the
 * distance with a minus). */
enum { THREADPOOL_DOT, THREADPOOL_COSINE, THREADPOOL_EUCLIDEAN };

/* The k rows with the highest scores, best first; of equal ones the lower index first. *found of them are written:
 * k, or less if there are not so many; a row whose score is NaN is never one. `indices` and `scores` have room for
 * k entries, or for one each row if that is less; what is behind *found is undefined then. k is 1 or more.
 *
 *   threadpool_matrix m = {.data = embeddings, .rows = 10000, .dim = 768};
 *   int64_t index[10], found;
 *   float score[10];
 *   int error = threadpool_vector_top(pool, &m, query, 10, THREADPOOL_COSINE, index, score, &found);
 */
THREADPOOL_API int threadpool_vector_top(threadpool_t *pool, const threadpool_matrix *m,
                                         const float *query, int64_t k, int metric,
                                         int64_t *indices, float *scores, int64_t *found);

/* Where the largest, the least of n floats is: the lowest such index; -1 if there is none that is not NaN. */
THREADPOOL_API int threadpool_vector_argmax(threadpool_t *pool, const float *a, int64_t n,
                                            int64_t *index);
THREADPOOL_API int threadpool_vector_argmin(threadpool_t *pool, const float *a, int64_t n,
                                            int64_t *index);

#ifdef __cplusplus
}
#endif

#endif
