/* test_vector.c - vectors and matrices of floats: against sums of doubles, in order; the same bits whoever computes
 * them; ties, NaN, borders, misuse, no memory.
 *
 * Vectors end where their memory ends, so make asan sees a step too far. */
#include "test/help.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "api/vector_kernels.h"
#include "base/alloc.h"

enum { LARGE_ROWS = 1500, LARGE_DIM = 67 }; /* more than is computed inline */

static uint32_t seed = 1;
static float any(void) { /* -1 to 1 */
  seed = seed * 1664525u + 1013904223u;
  return (float)((double)(int32_t)seed / 0x1p31);
}

static float *floats(int64_t n) {
  float *a = malloc((size_t)(n ? n : 1) * sizeof *a);
  assert_non_null(a);
  for (int64_t i = 0; i < n; i++) a[i] = any();
  return a;
}

static double sum_of(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}
static double distance_of(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
  return sqrt(sum);
}
static double cosine_of(const float *a, const float *b, int64_t n) {
  double squares = sum_of(a, a, n) * sum_of(b, b, n);
  return squares > 0 ? sum_of(a, b, n) / sqrt(squares) : 0;
}

/* `scale`: how large what was added is. */
static void near(double a, double b, double scale) {
  if (!(fabs(a - b) <= 1e-6 * scale + 1e-37)) fail_msg("%.9g, expected %.9g", a, b);
}

static uint32_t bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static threadpool_t *pool;
static int open_pool(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 3});
  return 0;
}
static int close_pool(void **state) {
  (void)state;
  return threadpool_shutdown(pool);
}

/* --- kernels */

static void every_set_gives_the_same_bits(void **state) {
  (void)state;
  const tp_kernels *plain = tp_kernels_at(0);
  assert_non_null(plain);
  for (int set = 1; tp_kernels_at(set); set++) {
    const tp_kernels *k = tp_kernels_at(set);
    assert_string_not_equal(k->name, plain->name);
    for (int64_t n = 0; n < 200; n++) {
      float *a = floats(n), *b = floats(n), *c = malloc(n ? (size_t)n * sizeof *c : 1);
      memcpy(c, a, (size_t)n * sizeof *c);
      for (tp_sum what = TP_DOT; what < TP_SUMS; what++) {
        float x[2] = {1, 1}, y[2] = {2, 2};
        k->sum[what](a, what == TP_SQUARES ? a : b, n, x);
        plain->sum[what](a, what == TP_SQUARES ? a : b, n, y);
        assert_int_equal(bits(x[0]), bits(y[0]));
        assert_int_equal(bits(x[1]), bits(y[1]));
      }
      assert_int_equal(bits(k->most(a, n, 1)), bits(plain->most(a, n, 1)));
      assert_int_equal(bits(k->most(a, n, -1)), bits(plain->most(a, n, -1)));
      k->scale(a, n, 0.3f);
      plain->scale(c, n, 0.3f);
      assert_memory_equal(a, c, (size_t)n * sizeof *c);
      free(a);
      free(b);
      free(c);
    }
  }
  assert_null(tp_kernels_at(-1));
}

static void each_kernel_sums_what_it_says(void **state) {
  (void)state;
  for (int set = 0; tp_kernels_at(set); set++) {
    const tp_kernels *k = tp_kernels_at(set);
    for (int64_t n = 0; n < 200; n++) {
      float *a = floats(n), *b = floats(n), out[2];
      k->sum[TP_DOT](a, b, n, out);
      near(out[0], sum_of(a, b, n), (double)n);
      k->sum[TP_DOT_SQUARES](a, b, n, out);
      near(out[0], sum_of(a, b, n), (double)n);
      near(out[1], sum_of(a, a, n), (double)n);
      k->sum[TP_SQUARES](a, a, n, out);
      near(out[0], sum_of(a, a, n), (double)n);
      k->sum[TP_DISTANCE](a, b, n, out);
      near(sqrt((double)out[0]), distance_of(a, b, n), (double)n);
      free(a);
      free(b);
    }
  }
}

/* --- vectors */

static void a_pair(threadpool_t *p, int64_t n) {
  float *a = floats(n), *b = floats(n);
  double x = -1;
  assert_int_equal(threadpool_vector_dot(p, a, b, n, &x), 0);
  near(x, sum_of(a, b, n), sqrt((double)n));
  assert_int_equal(threadpool_vector_norm(p, a, n, &x), 0);
  near(x, sqrt(sum_of(a, a, n)), sqrt((double)n));
  assert_int_equal(threadpool_vector_cosine(p, a, b, n, &x), 0);
  near(x, cosine_of(a, b, n), 1);
  assert_int_equal(threadpool_vector_cosine(p, a, a, n, &x), 0);
  assert_true(x == (n ? 1 : 0));
  for (int64_t i = 0; i < n; i++) b[i] = -a[i];
  assert_int_equal(threadpool_vector_cosine(p, a, b, n, &x), 0);
  assert_true(x == (n ? -1 : 0));
  free(a);
  free(b);
}

static void vectors_of_any_length(void **state) {
  (void)state;
  for (int64_t n = 0; n <= 70; n++) a_pair(n % 2 ? pool : NULL, n);
  const int64_t long_ones[] = {TP_BLOCK - 1, TP_BLOCK, TP_BLOCK + 1, 65536, 65537, 300001};
  for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++) {
    a_pair(NULL, long_ones[i]);
    a_pair(pool, long_ones[i]);
  }
}

static void chunks_cover_a_vector_of_any_length(void **state) {
  (void)state;
  for (int64_t n = 1; n > 0 && n <= INT64_MAX / 8; n = n * 3 + 1) {
    int64_t length = tp_chunk_length(n);
    assert_true(length > 0 && length % TP_BLOCK == 0);
    assert_true((n - 1) / length + 1 <= TP_CHUNKS_MOST);
  }
  assert_int_equal(tp_chunk_length((int64_t)TP_BLOCK * TP_CHUNKS_MOST), TP_BLOCK);
  assert_int_equal(tp_chunk_length((int64_t)TP_BLOCK * TP_CHUNKS_MOST + 1), 2 * TP_BLOCK);
}

/* A float's squares leave its range long before it does. */
static void what_floats_cannot_hold_is_computed_in_doubles(void **state) {
  (void)state;
  const float values[] = {1e30f, 1e-30f, FLT_MAX, FLT_MIN, FLT_TRUE_MIN};
  for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
    float a[40], b[40];
    for (int i = 0; i < 40; i++) a[i] = values[v], b[i] = i % 2 ? values[v] : -values[v];
    double x, norm = (double)values[v] * sqrt(40);
    assert_int_equal(threadpool_vector_norm(NULL, a, 40, &x), 0);
    assert_true(fabs(x / norm - 1) < 1e-6);
    assert_int_equal(threadpool_vector_cosine(NULL, a, a, 40, &x), 0);
    assert_true(fabs(x - 1) < 1e-6);
    assert_int_equal(threadpool_vector_cosine(NULL, a, b, 40, &x), 0);
    assert_true(x == 0);
    assert_int_equal(threadpool_vector_dot(NULL, a, b, 40, &x), 0);
    assert_true(x == 0);
    threadpool_matrix m = {a, 1, 40, 0};
    float score, cosine;
    int64_t index, found;
    assert_int_equal(
        threadpool_vector_top(NULL, &m, b, 1, THREADPOOL_EUCLIDEAN, &index, &score, &found), 0);
    double distance = sqrt(80) * (double)values[v];
    if (distance > (double)FLT_MAX)
      assert_true(score == -INFINITY);
    else
      near(score, -distance, distance);
    assert_int_equal(threadpool_vector_normalise(NULL, &m), 0);
    for (int i = 0; i < 40; i++) near(a[i], 1 / sqrt(40), 1);
    assert_int_equal(threadpool_vector_cosines(NULL, &m, a, &cosine), 0);
    assert_true(cosine == 1);
  }
}

static void zeros_have_the_cosine_0(void **state) {
  (void)state;
  float zeros[5] = {0, -0.f}, a[5] = {1, 2, 3, 4, 5};
  double x = 7;
  assert_int_equal(threadpool_vector_cosine(NULL, zeros, a, 5, &x), 0);
  assert_true(x == 0);
  assert_int_equal(threadpool_vector_cosine(NULL, a, zeros, 5, &x), 0);
  assert_true(x == 0);
  threadpool_matrix m = {zeros, 1, 5, 0};
  assert_int_equal(threadpool_vector_normalise(NULL, &m), 0);
  for (int i = 0; i < 5; i++) assert_true(zeros[i] == 0);
  a[2] = NAN;
  assert_int_equal(threadpool_vector_cosine(NULL, a, zeros, 5, &x), 0);
  assert_true(isnan(x));
  assert_int_equal(threadpool_vector_norm(NULL, a, 5, &x), 0);
  assert_true(isnan(x));
  a[2] = INFINITY;
  assert_int_equal(threadpool_vector_norm(NULL, a, 5, &x), 0);
  assert_true(isinf(x));
}

/* --- rows */

/* What lies between the rows is NaN, and stays it. */
static threadpool_matrix matrix(int64_t rows, int64_t dim, int64_t stride) {
  threadpool_matrix m = {NULL, rows, dim, stride};
  int64_t step = stride ? stride : dim, n = rows ? (rows - 1) * step + dim : 0;
  m.data = floats(n);
  for (int64_t i = 0; i < n; i++)
    if (i % step >= dim) m.data[i] = NAN;
  return m;
}
static float *row(const threadpool_matrix *m, int64_t i) {
  return m->data + i * (m->stride ? m->stride : m->dim);
}

static void each_row(threadpool_t *p, int64_t rows, int64_t dim, int64_t stride) {
  threadpool_matrix m = matrix(rows, dim, stride);
  float *query = floats(dim), *out = floats(rows);
  double x;
  assert_int_equal(threadpool_vector_dots(p, &m, query, out), 0);
  for (int64_t i = 0; i < rows; i++) {
    assert_int_equal(threadpool_vector_dot(NULL, row(&m, i), query, dim, &x), 0);
    assert_true(out[i] == (float)x);
    near(x, sum_of(row(&m, i), query, dim), sqrt((double)dim));
  }
  assert_int_equal(threadpool_vector_cosines(p, &m, query, out), 0);
  for (int64_t i = 0; i < rows; i++) {
    assert_int_equal(threadpool_vector_cosine(NULL, row(&m, i), query, dim, &x), 0);
    assert_true(out[i] == (float)x);
    near(x, cosine_of(row(&m, i), query, dim), 1);
  }
  assert_int_equal(threadpool_vector_norms(p, &m, out), 0);
  for (int64_t i = 0; i < rows; i++) {
    assert_int_equal(threadpool_vector_norm(NULL, row(&m, i), dim, &x), 0);
    assert_true(out[i] == (float)x);
  }
  assert_int_equal(threadpool_vector_normalise(p, &m), 0);
  for (int64_t i = 0; i < rows; i++) near(sum_of(row(&m, i), row(&m, i), dim), 1, 1);
  for (int64_t i = 0; i + 1 < rows; i++)
    for (int64_t j = dim; j < stride; j++) assert_true(isnan(row(&m, i)[j]));
  free(m.data);
  free(query);
  free(out);
}

static void rows_of_any_length(void **state) {
  (void)state;
  for (int64_t dim = 1; dim <= 70; dim++) each_row(NULL, 5, dim, dim % 3 ? dim + dim % 7 : 0);
  each_row(pool, 5, 7, 9);
  each_row(pool, LARGE_ROWS, LARGE_DIM, 0);
  each_row(pool, LARGE_ROWS, LARGE_DIM, LARGE_DIM + 5);
  each_row(pool, 3, 70001, 0); /* fewer than threads, each of several chunks */
}

/* --- top */

typedef struct scored {
  double score;
  int64_t index;
} scored;

static int by_score(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return (x->index > y->index) - (x->index < y->index);
}

/* Few values, so many ties: sums of small integers are exact. */
static threadpool_matrix few_values(int64_t rows, int64_t dim) {
  threadpool_matrix m = matrix(rows, dim, dim + 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < dim; j++) row(&m, i)[j] = (float)(int)(2 * any());
  return m;
}

static float score_of(const float *a, const float *query, int64_t dim, int metric) {
  double x;
  if (metric == THREADPOOL_EUCLIDEAN) return (float)-distance_of(a, query, dim);
  if (metric == THREADPOOL_DOT)
    assert_int_equal(threadpool_vector_dot(NULL, a, query, dim, &x), 0);
  else
    assert_int_equal(threadpool_vector_cosine(NULL, a, query, dim, &x), 0);
  return (float)x;
}

static void the_best_of(threadpool_t *p, int64_t rows, int64_t dim, int64_t k, int metric,
                        bool nans) {
  threadpool_matrix m = few_values(rows, dim);
  float *query = floats(dim);
  for (int64_t j = 0; j < dim; j++) query[j] = (float)(int)(3 * query[j]);
  scored *all = malloc((size_t)(rows + 1) * sizeof *all);
  int64_t expected = 0, room = k < rows ? k : rows, found = -1;
  for (int64_t i = 0; i < rows; i++) {
    if (nans && i % 3 != 1) row(&m, i)[dim / 2] = NAN;
    float score = score_of(row(&m, i), query, dim, metric);
    if (!isnan(score)) all[expected++] = (scored){(double)score, i};
  }
  qsort(all, (size_t)expected, sizeof *all, by_score);
  if (expected > k) expected = k;
  int64_t *index = malloc(room ? (size_t)room * sizeof *index : 1);
  float *score = malloc(room ? (size_t)room * sizeof *score : 1);
  assert_int_equal(threadpool_vector_top(p, &m, query, k, metric, index, score, &found), 0);
  assert_int_equal(found, expected);
  for (int64_t i = 0; i < found; i++) {
    assert_int_equal(index[i], all[i].index);
    assert_true((double)score[i] == all[i].score);
  }
  free(m.data);
  free(query);
  free(all);
  free(index);
  free(score);
}

static void the_best_rows_in_order(void **state) {
  (void)state;
  const int64_t k[] = {1, 2, 10, 99, 100, 101, INT64_MAX};
  for (int metric = THREADPOOL_DOT; metric <= THREADPOOL_EUCLIDEAN; metric++) {
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
      the_best_of(NULL, 100, 5, k[i], metric, false);
      the_best_of(NULL, 100, 5, k[i], metric, true);
      the_best_of(pool, LARGE_ROWS, LARGE_DIM, k[i], metric, i % 2);
    }
    the_best_of(pool, LARGE_ROWS, LARGE_DIM, LARGE_ROWS, metric, true);
    the_best_of(pool, 100000, 1, 10, metric, true);
    the_best_of(NULL, 1, 5, 3, metric, false);
  }
}

static void minus_infinity_is_a_score(void **state) {
  (void)state;
  float rows[4] = {-INFINITY, NAN, -INFINITY, 1}, query = 1, score[4];
  threadpool_matrix m = {rows, 4, 1, 0};
  int64_t index[4], found;
  assert_int_equal(threadpool_vector_top(NULL, &m, &query, 4, THREADPOOL_DOT, index, score, &found),
                   0);
  assert_int_equal(found, 3);
  assert_int_equal(index[0], 3);
  assert_int_equal(index[1], 0);
  assert_int_equal(index[2], 2);
}

static void empty_matrices(void **state) {
  (void)state;
  float query[3] = {1, 2, 3}, out[3] = {7, 7, 7};
  int64_t index[3], found = 7;
  threadpool_matrix none = {NULL, 0, 3, 0}, flat = {NULL, 3, 0, 0};
  threadpool_t *pools[] = {NULL, pool};
  for (int i = 0; i < 2; i++) {
    threadpool_t *p = pools[i];
    assert_int_equal(threadpool_vector_dots(p, &none, query, NULL), 0);
    assert_int_equal(threadpool_vector_norms(p, &none, NULL), 0);
    assert_int_equal(threadpool_vector_normalise(p, &none), 0);
    assert_int_equal(
        threadpool_vector_top(p, &none, query, 3, THREADPOOL_COSINE, NULL, NULL, &found), 0);
    assert_int_equal(found, 0);
    for (int metric = THREADPOOL_DOT; metric <= THREADPOOL_EUCLIDEAN; metric++) {
      assert_int_equal(threadpool_vector_top(p, &flat, NULL, 2, metric, index, out, &found), 0);
      assert_int_equal(found, 2);
      assert_int_equal(index[0], 0);
      assert_int_equal(index[1], 1);
      assert_true(out[0] == 0 && out[1] == 0 && !signbit(out[0]));
    }
    assert_int_equal(threadpool_vector_cosines(p, &flat, NULL, out), 0);
    assert_true(out[0] == 0 && out[2] == 0);
    assert_int_equal(threadpool_vector_norms(p, &flat, out), 0);
    assert_int_equal(threadpool_vector_normalise(p, &flat), 0);
    double x = 7;
    assert_int_equal(threadpool_vector_dot(p, NULL, NULL, 0, &x), 0);
    assert_true(x == 0);
    assert_int_equal(threadpool_vector_norm(p, NULL, 0, &x), 0);
    assert_int_equal(threadpool_vector_argmax(p, NULL, 0, &found), 0);
    assert_int_equal(found, -1);
  }
}

/* --- argmax */

static void the_extreme_is(const float *a, int64_t n, int64_t largest, int64_t least) {
  threadpool_t *pools[] = {NULL, pool};
  for (int i = 0; i < 2; i++) {
    int64_t index = -2;
    assert_int_equal(threadpool_vector_argmax(pools[i], a, n, &index), 0);
    assert_int_equal(index, largest);
    assert_int_equal(threadpool_vector_argmin(pools[i], a, n, &index), 0);
    assert_int_equal(index, least);
  }
}

static void the_lowest_index_of_the_extreme(void **state) {
  (void)state;
  const int64_t lengths[] = {1, 2, 31, 32, 33, 70, TP_BLOCK, 3 * TP_BLOCK + 5, 100003};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
    int64_t n = lengths[l];
    float *a = floats(n);
    for (int64_t at = 0; at < n; at += 1 + n / 7) {
      float old = a[at], last = a[n - 1];
      a[at] = a[n - 1] = 2;
      int64_t least = 0;
      for (int64_t i = 1; i < n; i++)
        if (a[i] < a[least]) least = i;
      the_extreme_is(a, n, at, least);
      a[n - 1] = last;
      a[at] = old;
    }
    for (int64_t i = 0; i < n; i++) a[i] = 3;
    the_extreme_is(a, n, 0, 0);
    for (int64_t i = 0; i < n; i++) a[i] = NAN;
    the_extreme_is(a, n, -1, -1);
    a[n - 1] = -INFINITY;
    the_extreme_is(a, n, n - 1, n - 1);
    a[n / 2] = -INFINITY;
    the_extreme_is(a, n, n / 2, n / 2);
    a[n - 1] = INFINITY;
    the_extreme_is(a, n, n - 1, n / 2 < n - 1 ? n / 2 : n - 1);
    free(a);
  }
}

/* --- whoever computes it */

typedef struct everything {
  double dot, norm, cosine;
  float dots[LARGE_ROWS], norms[LARGE_ROWS], cosines[LARGE_ROWS], scores[3][30];
  int64_t indices[3][30], argmax;
} everything;

static void compute(everything *e, threadpool_t *p, const threadpool_matrix *m,
                    const float *query) {
  int64_t n = m->rows * m->dim, found;
  memset(e, 0, sizeof *e);
  test_must(threadpool_vector_dot(p, m->data, m->data + 1, n - 1, &e->dot) == 0);
  test_must(threadpool_vector_norm(p, m->data, n, &e->norm) == 0);
  test_must(threadpool_vector_cosine(p, m->data, m->data + 1, n - 1, &e->cosine) == 0);
  test_must(threadpool_vector_dots(p, m, query, e->dots) == 0);
  test_must(threadpool_vector_norms(p, m, e->norms) == 0);
  test_must(threadpool_vector_cosines(p, m, query, e->cosines) == 0);
  for (int metric = 0; metric < 3; metric++) {
    test_must(threadpool_vector_top(p, m, query, 30, metric, e->indices[metric], e->scores[metric],
                                    &found) == 0);
    test_must(found == 30);
  }
  test_must(threadpool_vector_argmax(p, m->data, n, &e->argmax) == 0);
}

static threadpool_matrix large;
static float *large_query;
static everything alone;

static void compute_and_compare(threadpool_t *p) {
  everything *e = malloc(sizeof *e);
  compute(e, p, &large, large_query);
  test_must(memcmp(e, &alone, sizeof *e) == 0);
  free(e);
}
static void *outside(void *arg) {
  (void)arg;
  for (long i = 0; i < test_size(2, 20); i++) compute_and_compare(pool);
  return NULL;
}
static void inside(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
  compute_and_compare(pool);
}
static void inside_of_a_loop(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  (void)w, (void)arg;
  for (int64_t i = begin; i < end; i++) compute_and_compare(pool);
}
static void run_loop(threadpool_worker *w, void *arg) {
  test_must(threadpool_for(w, 0, 4, 1, inside_of_a_loop, arg) == 0);
}

static void the_same_bits_whoever_computes_them(void **state) {
  (void)state;
  large = matrix(LARGE_ROWS, LARGE_DIM, 0);
  large_query = floats(LARGE_DIM);
  compute(&alone, NULL, &large, large_query);
  const int sizes[] = {1, 2, 5, 16};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    threadpool_t *p = test_pool((threadpool_options){.workers = sizes[i]});
    for (long times = test_size(2, 20); times > 0; times--) compute_and_compare(p);
    assert_int_equal(threadpool_shutdown(p), 0);
  }
  /* Several calls at once, from outside, in a worker, in a part of another loop. */
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, outside, NULL), 0);
  assert_int_equal(threadpool_broadcast(pool, inside, NULL), 0);
  assert_int_equal(threadpool_call(pool, run_loop, NULL), 0);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  free(large.data);
  free(large_query);
}

/* --- what goes wrong */

static void refused(int error, const char *text) {
  assert_int_equal(error, ERR_INVALID_ARGUMENT);
  if (!strstr(threadpool_last_error(), text))
    fail_msg("\"%s\" does not say \"%s\"", threadpool_last_error(), text);
}

static void misuse_is_named(void **state) {
  (void)state;
  float a[6] = {0}, out[2];
  double x;
  int64_t i[2], found;
  threadpool_matrix m = {a, 2, 3, 0};
  refused(threadpool_vector_dot(NULL, NULL, a, 3, &x), "a is NULL");
  refused(threadpool_vector_dot(NULL, a, NULL, 3, &x), "b is NULL");
  refused(threadpool_vector_dot(NULL, a, a, -1, &x), "n is -1");
  refused(threadpool_vector_dot(NULL, a, a, 3, NULL), "result is NULL");
  refused(threadpool_vector_norm(NULL, NULL, 3, &x), "a is NULL");
  refused(threadpool_vector_norm(NULL, a, 3, NULL), "result is NULL");
  refused(threadpool_vector_cosine(NULL, a, NULL, 3, &x), "b is NULL");
  refused(threadpool_vector_cosine(NULL, a, a, 3, NULL), "result is NULL");
  refused(threadpool_vector_argmax(NULL, NULL, 3, i), "a is NULL");
  refused(threadpool_vector_argmax(NULL, a, -3, i), "n is -3");
  refused(threadpool_vector_argmin(NULL, a, 3, NULL), "index is NULL");
  refused(threadpool_vector_dots(NULL, NULL, a, out), "the matrix is NULL");
  refused(threadpool_vector_dots(NULL, &m, NULL, out), "the query is NULL");
  refused(threadpool_vector_dots(NULL, &m, a, NULL), "out is NULL");
  refused(threadpool_vector_norms(NULL, NULL, out), "the matrix is NULL");
  refused(threadpool_vector_norms(NULL, &m, NULL), "out is NULL");
  refused(threadpool_vector_cosines(NULL, &m, NULL, out), "the query is NULL");
  refused(threadpool_vector_normalise(NULL, NULL), "the matrix is NULL");
  refused(threadpool_vector_top(NULL, &m, a, 0, THREADPOOL_DOT, i, out, &found), "k is 0");
  refused(threadpool_vector_top(NULL, &m, a, -1, THREADPOOL_DOT, i, out, &found), "k is -1");
  refused(threadpool_vector_top(NULL, &m, a, 1, 3, i, out, &found), "metric is 3");
  refused(threadpool_vector_top(NULL, &m, a, 1, -1, i, out, &found), "metric is -1");
  refused(threadpool_vector_top(NULL, &m, NULL, 1, 0, i, out, &found), "the query is NULL");
  refused(threadpool_vector_top(NULL, &m, a, 1, 0, NULL, out, &found), "indices is NULL");
  refused(threadpool_vector_top(NULL, &m, a, 1, 0, i, NULL, &found), "scores is NULL");
  refused(threadpool_vector_top(NULL, &m, a, 1, 0, i, out, NULL), "found is NULL");
  const struct {
    threadpool_matrix m;
    const char *text;
  } wrong[] = {{{NULL, 2, 3, 0}, "data is NULL"},
               {{a, -2, 3, 0}, "-2 rows"},
               {{a, 2, -3, 0}, "dim -3"},
               {{a, 2, 3, 2}, "stride is 2"},
               {{a, 2, 3, -3}, "stride is -3"},
               {{a, INT64_MAX, 3, 0}, "more than memory"},
               {{a, 3, 3, INT64_MAX}, "more than memory"}};
  for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
    refused(threadpool_vector_norms(pool, &wrong[w].m, out), wrong[w].text);
}

static void a_closed_pool(void **state) {
  (void)state;
  threadpool_t *p = test_pool((threadpool_options){.workers = 1});
  assert_int_equal(threadpool_shutdown(p), 0);
  threadpool_matrix m = matrix(LARGE_ROWS, LARGE_DIM, 0);
  float out[LARGE_ROWS], score;
  int64_t index, found;
  double x;
  assert_int_equal(threadpool_vector_norms(p, &m, out), ERR_SHUTDOWN);
  assert_string_equal(threadpool_last_error(), threadpool_error_text(ERR_SHUTDOWN));
  assert_int_equal(threadpool_vector_top(p, &m, out, 1, THREADPOOL_DOT, &index, &score, &found),
                   ERR_SHUTDOWN);
  assert_int_equal(threadpool_vector_norm(p, m.data, LARGE_ROWS * LARGE_DIM, &x), ERR_SHUTDOWN);
  assert_int_equal(threadpool_vector_argmax(p, m.data, LARGE_ROWS * LARGE_DIM, &index),
                   ERR_SHUTDOWN);
  assert_int_equal(threadpool_vector_norm(p, m.data, 10, &x), 0); /* needs no pool */
  free(m.data);
}

/* Only a second thread needs memory, so it is tried until one has come. */
static void without_memory_it_says_so(void **state) {
  (void)state;
  threadpool_matrix m = matrix(20000, 64, 0);
  float *query = floats(64), score[5], first[5];
  int64_t index[5], right[5], found;
  assert_int_equal(threadpool_vector_top(NULL, &m, query, 5, THREADPOOL_DOT, right, first, &found),
                   0);
  bool failed = false;
  for (uint64_t begin = tp_now_ns(); !failed;) {
    assert_true(tp_now_ns() - begin < 60 * TP_NS_PER_S);
    tp_fail_run(1, 10 * TP_GET_TRIES);
    int error = threadpool_vector_top(pool, &m, query, 5, THREADPOOL_DOT, index, score, &found);
    tp_fail_at(0);
    if (error) {
      assert_int_equal(error, ERR_MALLOC_FAILED);
      assert_non_null(strstr(threadpool_last_error(), "no memory"));
      failed = true;
    } else {
      assert_memory_equal(index, right, sizeof right);
    }
  }
  assert_int_equal(threadpool_vector_top(pool, &m, query, 5, THREADPOOL_DOT, index, score, &found),
                   0);
  assert_memory_equal(index, right, sizeof right);
  assert_memory_equal(score, first, sizeof first);
  free(m.data);
  free(query);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_set_gives_the_same_bits),
      cmocka_unit_test(each_kernel_sums_what_it_says),
      cmocka_unit_test(vectors_of_any_length),
      cmocka_unit_test(chunks_cover_a_vector_of_any_length),
      cmocka_unit_test(what_floats_cannot_hold_is_computed_in_doubles),
      cmocka_unit_test(zeros_have_the_cosine_0),
      cmocka_unit_test(rows_of_any_length),
      cmocka_unit_test(the_best_rows_in_order),
      cmocka_unit_test(minus_infinity_is_a_score),
      cmocka_unit_test(empty_matrices),
      cmocka_unit_test(the_lowest_index_of_the_extreme),
      cmocka_unit_test(the_same_bits_whoever_computes_them),
      cmocka_unit_test(misuse_is_named),
      cmocka_unit_test(a_closed_pool),
      cmocka_unit_test(without_memory_it_says_so),
  };
  return cmocka_run_group_tests(tests, open_pool, close_pool);
}
