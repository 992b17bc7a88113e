/* vector_top.c - the best k rows of a matrix.
 *
 * Each thread keeps the best k rows it has seen in a heap with the worst of them on top; where two threads join, the
 * rows of one are offered to the heap of the other. Rows are ordered by score and then by index, so no two are equal
 * and the best k are the same ones however the rows were shared. The first thread has its heap in the caller's arrays,
 * so one thread alone needs no memory.
 */
#include "api/vector.h"
#include "base/alloc.h"

typedef struct heap {
  int64_t *index; /* NULL: no row was seen yet, or there is no memory */
  float *score;
  int64_t count, most;
} heap;

typedef struct top {
  const tp_rows *rows;
  int64_t k;
  int64_t *indices; /* the caller's */
  float *scores;
  /* Relaxed, both: the one gives nothing but the right to the caller's arrays, the other is read after the join; before
   * that it only saves work. */
  _Atomic bool taken;  /* the caller's arrays */
  _Atomic bool failed; /* no memory for a heap */
} top;

static bool worse(const heap *h, int64_t i, float score, int64_t index) {
  return h->score[i] < score || (h->score[i] == score && h->index[i] > index);
}

static void put(heap *h, int64_t i, float score, int64_t index) {
  h->score[i] = score;
  h->index[i] = index;
}

/* Let (score, index) sink from the hole i to its place among the first `count`. */
static void sink(heap *h, int64_t i, int64_t count, float score, int64_t index) {
  for (int64_t child; (child = 2 * i + 1) < count; i = child) {
    if (child + 1 < count && worse(h, child + 1, h->score[child], h->index[child])) child++;
    if (!worse(h, child, score, index)) break;
    put(h, i, h->score[child], h->index[child]);
  }
  put(h, i, score, index);
}

static void offer(heap *h, float score, int64_t index) {
  if (score != score) return; /* NaN */
  if (h->count == h->most) {
    if (worse(h, 0, score, index)) sink(h, 0, h->count, score, index);
    return;
  }
  int64_t i = h->count++;
  for (int64_t parent; i > 0 && !worse(h, parent = (i - 1) / 2, score, index); i = parent)
    put(h, i, h->score[parent], h->index[parent]);
  put(h, i, score, index);
}

static bool make_heap(heap *h, top *t) {
  h->most = t->k < t->rows->rows ? t->k : t->rows->rows;
  if (!tp_swap(&t->taken, true, relaxed)) {
    h->index = t->indices;
    h->score = t->scores;
    return true;
  }
  char *memory = tp_get((size_t)h->most * (sizeof *h->index + sizeof *h->score));
  if (!memory) {
    tp_store(&t->failed, true, relaxed);
    return false;
  }
  h->index = (void *)memory;
  h->score = (void *)(memory + (size_t)h->most * sizeof *h->index);
  return true;
}

static void see_rows(int64_t begin, int64_t end, void *acc, void *arg) {
  heap *h = acc;
  top *t = arg;
  if (tp_load(&t->failed, relaxed) || (!h->index && !make_heap(h, t))) return;
  for (int64_t i = begin; i < end; i++) offer(h, t->rows->score(t->rows, i), i);
}

/* Into the caller's arrays, if one of the two has them. */
static void join_heaps(void *acc, void *right, void *arg) {
  heap *h = acc, *r = right;
  const top *t = arg;
  if (!r->index) return;
  if (!h->index || r->index == t->indices) {
    heap other = *h;
    *h = *r;
    *r = other;
  }
  if (!r->index) return;
  for (int64_t i = 0; i < r->count; i++) offer(h, r->score[i], r->index[i]);
  tp_put(r->index);
}

/* The worst goes behind what is left, until nothing is left. */
static void sort_heap(heap *h) {
  for (int64_t n = h->count - 1; n > 0; n--) {
    float score = h->score[n];
    int64_t index = h->index[n];
    put(h, n, h->score[0], h->index[0]);
    sink(h, 0, n, score, index);
  }
}

int threadpool_vector_top(threadpool_t *pool, const threadpool_matrix *m, const float *query,
                          int64_t k, int metric, int64_t *indices, float *scores, int64_t *found) {
  tp_rows r;
  int error = tp_vector_check(&r, m, query);
  if (!error) error = tp_vector_measure(&r, metric);
  if (error) return error;
  if (k <= 0) return TP_VECTOR_WRONG("k is %lld: expected 1 or more", (long long)k);
  if (!found || (r.rows > 0 && (!indices || !scores)))
    return TP_VECTOR_WRONG("%s is NULL", !found ? "found" : !indices ? "indices" : "scores");
  top t = {.rows = &r, .k = k, .indices = indices, .scores = scores};
  tp_loop loop = {.n = r.rows, .body = see_rows, .merge = join_heaps, .arg = &t};
  union {
    heap heap;
    char acc[TP_LOOP_ACC];
  } best = {.acc = {0}};
  error = tp_vector_loop(pool, &loop, r.dim, &best);
  if (error) return error;
  if (tp_load(&t.failed, relaxed))
    return tp_say(ERR_MALLOC_FAILED, "no memory for %lld rows on each thread",
                  (long long)(k < r.rows ? k : r.rows));
  sort_heap(&best.heap);
  *found = best.heap.count;
  return 0;
}
