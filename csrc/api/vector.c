/* vector.c - the entry points of threadpool_vector.h: check, choose between here and the pool, call the kernels. */
#include "api/vector.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "sched/sched.h"

/* Floats. Fewer are done in less than 10 us; in some 60 us, if they lie in memory; what a thread takes at once. */
enum { INLINE_FLOATS = 65536, SHORT_FLOATS = 524288, PIECE_FLOATS = 16384 };

/* --- what may be wrong */

static int null(const char *what) {
  return TP_VECTOR_WRONG("%s is NULL", what);
}

static int check_array(const char *name, const float *a, int64_t n) {
  if (n < 0) return TP_VECTOR_WRONG("n is %lld: expected 0 or more floats", (long long)n);
  return a || n == 0 ? 0 : null(name);
}

int tp_vector_check(tp_rows *r, const threadpool_matrix *m, const float *query) {
  if (!m) return null("the matrix");
  int64_t stride = m->stride ? m->stride : m->dim, most = PTRDIFF_MAX / (int64_t)sizeof(float);
  if (m->rows < 0 || m->dim < 0)
    return TP_VECTOR_WRONG("a matrix of %lld rows, dim %lld: expected 0 or more",
                           (long long)m->rows, (long long)m->dim);
  if (stride < m->dim)
    return TP_VECTOR_WRONG(
        "stride is %lld: expected 0, or floats from row to row, dim (%lld) at least",
        (long long)m->stride, (long long)m->dim);
  if (stride > 0 && m->rows > most / stride)
    return TP_VECTOR_WRONG("a matrix of %lld rows, stride %lld: more than memory",
                           (long long)m->rows, (long long)stride);
  bool empty = m->rows == 0 || m->dim == 0;
  if (!m->data && !empty) return null("the matrix's data");
  if (!query && !empty) return null("the query");
  static float nothing; /* so that no sum is made with NULL */
  *r = (tp_rows){.kernels = tp_kernels_best(),
                 .data = empty ? &nothing : m->data,
                 .rows = m->rows,
                 .dim = empty ? 0 : m->dim,
                 .stride = stride,
                 .query = empty ? &nothing : query};
  return 0;
}

/* --- here, or in the pool */

/* What is left of a thread's share: pieces from the low half of the word to the high one. The owner takes from the
 * front, so it reads its memory in order, and in the next call the same memory; who has nothing left takes half of
 * another's, from the back. Relaxed throughout: the word is all there is to know, and join orders what was computed. */
typedef _Atomic uint64_t share;

enum { THREADS_MOST = 256 };

static uint64_t pieces(uint64_t begin, uint64_t end) {
  return begin | end << 32;
}

static bool take(share *own, int64_t *piece) {
  uint64_t left = tp_load(own, relaxed), begin;
  do {
    begin = (uint32_t)left;
    if (begin >= left >> 32) return false;
  } while (!tp_cas_weak(own, &left, pieces(begin + 1, left >> 32), relaxed));
  *piece = (int64_t)begin;
  return true;
}

/* `own` is empty, and what is empty nobody else writes. */
static bool rob(share *from, share *own) {
  uint64_t left = tp_load(from, relaxed), begin, middle;
  do {
    begin = (uint32_t)left;
    if (begin >= left >> 32) return false;
    middle = begin + ((left >> 32) - begin) / 2;
  } while (!tp_cas_weak(from, &left, pieces(begin, middle), relaxed));
  tp_store(own, pieces(middle, left >> 32), relaxed);
  return true;
}

typedef struct shared_loop {
  tp_loop *loop;
  int64_t grain;
  unsigned threads;
  share share[THREADS_MOST];
} shared_loop;

/* Some of the threads that work on a loop: what they make of it goes to acc. */
typedef struct part {
  shared_loop *shared;
  unsigned first, threads;
  _Alignas(16) char acc[TP_LOOP_ACC];
} part;

static void work(part *p) {
  shared_loop *s = p->shared;
  tp_loop *l = s->loop;
  unsigned from = 0;
  do {
    for (int64_t piece; take(&s->share[p->first], &piece);) {
      int64_t begin = piece * s->grain;
      l->body(begin, l->n - begin < s->grain ? l->n : begin + s->grain, p->acc, l->arg);
    }
    for (from = 1; from < s->threads; from++)
      if (rob(&s->share[(p->first + from) % s->threads], &s->share[p->first])) break;
  } while (from < s->threads);
}

static void run_part(threadpool_worker *w, void *arg) {
  part *p = arg;
  if (p->threads <= 1) {
    work(p);
    return;
  }
  part right = {.shared = p->shared, .threads = p->threads / 2};
  p->threads -= right.threads;
  right.first = p->first + p->threads;
  threadpool_job job;
  threadpool_fork(w, &job, run_part, &right);
  run_part(w, p);
  threadpool_sync(w, &job); /* acquires what it has done */
  const tp_loop *l = p->shared->loop;
  if (l->merge) l->merge(p->acc, right.acc, l->arg);
}

static void run_loop(threadpool_worker *w, void *arg) {
  part *p = arg;
  shared_loop *s = p->shared;
  uint64_t all = (uint64_t)((s->loop->n - 1) / s->grain + 1);
  s->threads = tp_worker_of(w)->sched->workers;
  if (s->threads > THREADS_MOST) s->threads = THREADS_MOST;
  if (s->threads > all) s->threads = (unsigned)all;
  for (unsigned i = 0; i < s->threads; i++)
    tp_store(&s->share[i], pieces(all * i / s->threads, all * (i + 1) / s->threads), relaxed);
  p->threads = s->threads;
  run_part(w, p);
}

/* The scheduler leaves out the wakes of a function whose runs are short (sched/alarm.h), so long ones have another. */
static void run_short_loop(threadpool_worker *w, void *arg) {
  run_loop(w, arg);
}

int tp_vector_loop(threadpool_t *pool, tp_loop *l, int64_t floats_each, void *acc) {
  if (!pool || floats_each == 0 || l->n <= INLINE_FLOATS / floats_each) {
    if (l->n > 0) l->body(0, l->n, acc, l->arg);
    return 0;
  }
  shared_loop shared = {.loop = l};
  shared.grain = floats_each < PIECE_FLOATS ? PIECE_FLOATS / floats_each : 1;
  if (shared.grain < l->n >> 30) shared.grain = l->n >> 30; /* pieces are counted in 32 bits */
  part all = {.shared = &shared};
  bool is_short = l->n <= SHORT_FLOATS / floats_each;
  int error = threadpool_call(pool, is_short ? run_short_loop : run_loop, &all);
  if (error) return tp_say(error, "%s", tp_error_text(error));
  if (acc) memcpy(acc, all.acc, TP_LOOP_ACC);
  return 0;
}

/* body for [0, n), of which each is so many floats. */
static int for_each(threadpool_t *pool, int64_t n, int64_t floats_each, tp_loop_fn body,
                    void *arg) {
  tp_loop l = {.n = n, .body = body, .arg = arg};
  return tp_vector_loop(pool, &l, floats_each, NULL);
}

/* --- vectors */

typedef struct sum {
  const tp_kernels *kernels;
  tp_sum what;
  const float *a, *b;
  int64_t n, length;
  tp_pair part[TP_CHUNKS_MOST];
} sum;

static void sum_chunks(int64_t begin, int64_t end, void *acc, void *arg) {
  (void)acc;
  sum *s = arg;
  for (int64_t i = begin; i < end; i++) {
    int64_t from = i * s->length, left = s->n - from;
    s->part[i] = tp_sum_chunk(s->kernels, s->what, s->a, s->b, from,
                              left < s->length ? s->n : from + s->length);
  }
}

/* The chunks are the same ones in the same order, whoever computes them. */
static int sum_of(threadpool_t *pool, tp_sum what, const float *a, const float *b, int64_t n,
                  tp_pair *out) {
  const tp_kernels *k = tp_kernels_best();
  if (!pool || n <= INLINE_FLOATS) {
    *out = tp_sum_all(k, what, a, b, n);
    return 0;
  }
  sum s = {.kernels = k, .what = what, .a = a, .b = b, .n = n, .length = tp_chunk_length(n)};
  int64_t chunks = n / s.length + (n % s.length != 0);
  int error = for_each(pool, chunks, s.length, sum_chunks, &s);
  if (error) return error;
  tp_pair all = {{0, 0}};
  for (int64_t i = 0; i < chunks; i++) {
    all.of[0] += s.part[i].of[0];
    all.of[1] += s.part[i].of[1];
  }
  *out = tp_sum_checked(all, what, a, b, n);
  return 0;
}

int threadpool_vector_dot(threadpool_t *pool, const float *a, const float *b, int64_t n,
                          double *result) {
  int error = check_array("a", a, n);
  if (!error) error = check_array("b", b, n);
  if (!error && !result) error = null("result");
  tp_pair sums;
  if (!error) error = sum_of(pool, TP_DOT, a, b, n, &sums);
  if (!error) *result = sums.of[0];
  return error;
}

int threadpool_vector_norm(threadpool_t *pool, const float *a, int64_t n, double *result) {
  int error = check_array("a", a, n);
  if (!error && !result) error = null("result");
  tp_pair sums;
  if (!error) error = sum_of(pool, TP_SQUARES, a, a, n, &sums);
  if (!error) *result = sqrt(sums.of[0]);
  return error;
}

int threadpool_vector_cosine(threadpool_t *pool, const float *a, const float *b, int64_t n,
                             double *result) {
  int error = check_array("a", a, n);
  if (!error) error = check_array("b", b, n);
  if (!error && !result) error = null("result");
  tp_pair sums, square;
  if (!error) error = sum_of(pool, TP_DOT_SQUARES, a, b, n, &sums);
  if (!error) error = sum_of(pool, TP_SQUARES, b, b, n, &square);
  if (!error) *result = tp_cosine_of(sums.of[0], sums.of[1], square.of[0]);
  return error;
}

/* --- rows */

static const float *row(const tp_rows *r, int64_t i) {
  return r->data + i * r->stride;
}

static float dot_of(const tp_rows *r, int64_t i) {
  return (float)tp_sum_all(r->kernels, TP_DOT, row(r, i), r->query, r->dim).of[0];
}
static float cosine_of(const tp_rows *r, int64_t i) {
  tp_pair sums = tp_sum_all(r->kernels, TP_DOT_SQUARES, row(r, i), r->query, r->dim);
  return (float)tp_cosine_of(sums.of[0], sums.of[1], r->query_square);
}
static float distance_of(const tp_rows *r, int64_t i) {
  return (float)(0 - sqrt(tp_sum_all(r->kernels, TP_DISTANCE, row(r, i), r->query, r->dim).of[0]));
}
static float norm_of(const tp_rows *r, int64_t i) {
  return (float)sqrt(tp_sum_all(r->kernels, TP_SQUARES, row(r, i), row(r, i), r->dim).of[0]);
}

int tp_vector_measure(tp_rows *r, int metric) {
  switch (metric) {
  case THREADPOOL_DOT: r->score = dot_of; return 0;
  case THREADPOOL_EUCLIDEAN: r->score = distance_of; return 0;
  case THREADPOOL_COSINE:
    r->score = cosine_of;
    r->query_square = tp_sum_all(r->kernels, TP_SQUARES, r->query, r->query, r->dim).of[0];
    return 0;
  }
  return TP_VECTOR_WRONG(
      "metric is %d: expected THREADPOOL_DOT, THREADPOOL_COSINE or THREADPOOL_EUCLIDEAN", metric);
}

static void score_rows(int64_t begin, int64_t end, void *acc, void *arg) {
  (void)acc;
  const tp_rows *r = arg;
  for (int64_t i = begin; i < end; i++) r->out[i] = r->score(r, i);
}

static int scores(threadpool_t *pool, tp_rows *r, float *out) {
  if (!out && r->rows > 0) return null("out");
  r->out = out;
  return for_each(pool, r->rows, r->dim, score_rows, r);
}

int threadpool_vector_dots(threadpool_t *pool, const threadpool_matrix *m, const float *query,
                           float *out) {
  tp_rows r;
  int error = tp_vector_check(&r, m, query);
  if (!error) error = tp_vector_measure(&r, THREADPOOL_DOT);
  return error ? error : scores(pool, &r, out);
}

int threadpool_vector_cosines(threadpool_t *pool, const threadpool_matrix *m, const float *query,
                              float *out) {
  tp_rows r;
  int error = tp_vector_check(&r, m, query);
  if (!error) error = tp_vector_measure(&r, THREADPOOL_COSINE);
  return error ? error : scores(pool, &r, out);
}

int threadpool_vector_norms(threadpool_t *pool, const threadpool_matrix *m, float *out) {
  tp_rows r;
  int error = tp_vector_check(&r, m, m ? m->data : NULL);
  r.score = norm_of;
  return error ? error : scores(pool, &r, out);
}

static void normalise_rows(int64_t begin, int64_t end, void *acc, void *arg) {
  (void)acc;
  const tp_rows *r = arg;
  for (int64_t i = begin; i < end; i++) {
    float *a = r->data + i * r->stride;
    double norm = sqrt(tp_sum_all(r->kernels, TP_SQUARES, a, a, r->dim).of[0]);
    if (norm == 0) continue;
    if (norm > FLT_MIN && norm < 1 / (double)FLT_MIN) /* its inverse is a normal float */
      r->kernels->scale(a, r->dim, (float)(1 / norm));
    else
      for (int64_t j = 0; j < r->dim; j++) a[j] = (float)((double)a[j] / norm);
  }
}

int threadpool_vector_normalise(threadpool_t *pool, const threadpool_matrix *m) {
  tp_rows r;
  int error = tp_vector_check(&r, m, m ? m->data : NULL);
  return error ? error : for_each(pool, r.rows, r.dim, normalise_rows, &r);
}

/* --- argmax */

typedef struct extreme {
  float value;   /* times the sign */
  int64_t index; /* -1: none yet */
} extreme;

typedef struct search {
  const tp_kernels *kernels;
  const float *a;
  float sign;
  extreme *best; /* by chunk */
  int64_t n, length;
} search;

/* The lowest index with the block's largest value, if that is more than there was. */
static void search_block(const search *s, int64_t begin, int64_t end, extreme *best) {
  float most = s->kernels->most(s->a + begin, end - begin, s->sign);
  if (best->index >= 0 && most <= best->value) return;
  for (int64_t i = begin; i < end; i++) {
    if (s->a[i] * s->sign != most) continue; /* none: nothing but NaN */
    *best = (extreme){most, i};
    return;
  }
}

static void search_chunks(int64_t begin, int64_t end, void *acc, void *arg) {
  (void)acc;
  const search *s = arg;
  for (int64_t c = begin; c < end; c++) {
    extreme best = {0, -1};
    int64_t from = c * s->length, left = s->n - from;
    int64_t to = left < s->length ? s->n : from + s->length;
    for (int64_t i = from; i < to; i += TP_BLOCK)
      search_block(s, i, to - i < TP_BLOCK ? to : i + TP_BLOCK, &best);
    s->best[c] = best;
  }
}

static int argmost(threadpool_t *pool, const float *a, int64_t n, float sign, int64_t *index) {
  int error = check_array("a", a, n);
  if (error) return error;
  if (!index) return null("index");
  *index = -1;
  if (n == 0) return 0;
  extreme each[TP_CHUNKS_MOST], best = {0, -1};
  search s = {tp_kernels_best(), a, sign, each, n, tp_chunk_length(n)};
  int64_t chunks = n / s.length + (n % s.length != 0);
  error = for_each(pool, chunks, s.length, search_chunks, &s);
  if (error) return error;
  for (int64_t c = 0; c < chunks; c++)
    if (each[c].index >= 0 && (best.index < 0 || each[c].value > best.value)) best = each[c];
  *index = best.index;
  return 0;
}

int threadpool_vector_argmax(threadpool_t *pool, const float *a, int64_t n, int64_t *index) {
  return argmost(pool, a, n, 1, index);
}

int threadpool_vector_argmin(threadpool_t *pool, const float *a, int64_t n, int64_t *index) {
  return argmost(pool, a, n, -1, index);
}
