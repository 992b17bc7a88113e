/* harness_vector.c - the rows of a matrix that are most like a query: the matrix, the timing, the check. */
#define _GNU_SOURCE
#include "harness_vector.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 10000, DIM = 768, K = 10 };

static bench_matrix matrix;
static int64_t expected[K];

/* The same numbers every time, from -1 to 1; lua/vector_plain.lua makes them too. */
static void fill(float *a, int64_t n, uint32_t *seed) {
  for (int64_t i = 0; i < n; i++) {
    *seed = *seed * 1664525u + 1013904223u;
    a[i] = (float)((double)*seed / 2147483648.0 - 1);
  }
}

void bench_vector_start(void) {
  float *data = malloc((size_t)ROWS * DIM * sizeof *data), *query = malloc(DIM * sizeof *query);
  double *cosine = malloc(ROWS * sizeof *cosine);
  if (data == NULL || query == NULL || cosine == NULL) bench_fail("out of memory");
  uint32_t seed = 1;
  fill(data, (int64_t)ROWS * DIM, &seed);
  fill(query, DIM, &seed);
  matrix = (bench_matrix){data, query, ROWS, DIM};
  for (int64_t i = 0; i < ROWS; i++) {
    double dot = 0, square = 0;
    for (int64_t j = 0; j < DIM; j++) {
      double x = (double)data[i * DIM + j];
      dot += x * (double)query[j];
      square += x * x;
    }
    cosine[i] = dot * fabs(dot) / square; /* in the same order, and needs no libm */
  }
  for (int k = 0; k < K; k++) {
    for (int64_t i = 0; i < ROWS; i++)
      if (cosine[i] > cosine[expected[k]]) expected[k] = i;
    cosine[expected[k]] = -INFINITY;
  }
  free(cosine);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

double bench_vector_sample(const bench_impl *impl) {
  int64_t indices[K] = {0};
  float scores[K];
  double begin = now_us();
  impl->topk(&matrix, K, indices, scores);
  double took = now_us() - begin;
  for (int k = 0; k < K; k++) {
    if (indices[k] != expected[k])
      bench_fail("number %d is row %lld, not %lld", k + 1, (long long)indices[k],
                 (long long)expected[k]);
  }
  return took;
}
