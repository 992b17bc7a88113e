/* range.c - parallel loops: for, reduce, map, find.
 *
 * Lazy binary splitting: a loop works through its range piece by piece, and forks off the second half of
 * what is left only when nothing of its own is on offer: at first, and after somebody took the last offer.
 * So a loop nobody helps with costs one fork, and a skewed one is split where the work turns out to be.
 */
#include "base/error.h"
#include "base/atomic.h"
#include "sched/sched.h"

/* Nothing public in our deque: whoever comes to steal goes away empty. Relaxed: a hint. */
static bool nothing_on_offer(threadpool_worker *w) {
  return tp_load(&w->split, relaxed) - tp_load(&w->top, relaxed) <= 0;
}

static int64_t default_grain(threadpool_worker *w, uint64_t length) {
  uint64_t grain = length / (tp_worker_of(w)->sched->workers * 128ull);
  return grain < 1 ? 1 : grain > 512 ? 512 : (int64_t)grain;
}

static int check(threadpool_worker *w, int64_t grain, bool functions) {
  if (!functions || grain < 0) return ERR_INVALID_ARGUMENT;
  return w && tp_worker_of(w) == tp_self() ? 0 : ERR_WRONG_THREAD;
}

/* A range may be longer than INT64_MAX. */
static uint64_t length_of(int64_t begin, int64_t end) {
  return begin < end ? (uint64_t)end - (uint64_t)begin : 0;
}

/* --- for */

typedef struct loop {
  int64_t begin, end, grain;
  threadpool_range_fn body;
  void *arg;
} loop;

static void run_loop(threadpool_worker *w, void *arg) {
  loop l = *(loop *)arg;
  while (length_of(l.begin, l.end) > (uint64_t)l.grain) {
    if (nothing_on_offer(w)) {
      loop right = l;
      right.begin = l.end = l.begin + (int64_t)(length_of(l.begin, l.end) / 2);
      threadpool_job job;
      threadpool_fork(w, &job, run_loop, &right);
      run_loop(w, &l);
      threadpool_sync(w, &job);
      return;
    }
    l.body(w, l.begin, l.begin + l.grain, l.arg);
    l.begin += l.grain;
  }
  if (l.begin < l.end) l.body(w, l.begin, l.end, l.arg);
}

int threadpool_for(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                   threadpool_range_fn body, void *arg) {
  int error = check(w, grain, body != NULL);
  if (error) return error;
  if (!grain) grain = default_grain(w, length_of(begin, end));
  loop l = {begin, end, grain, body, arg};
  run_loop(w, &l);
  return 0;
}

/* --- reduce */

enum { REDUCE_MOST = 1024 };

typedef struct reduction {
  const threadpool_reducer *r;
  const void *identity;
  void *acc, *arg;
  int64_t begin, end, grain;
} reduction;

static void run_reduction(threadpool_worker *w, void *arg) {
  reduction d = *(reduction *)arg;
  while (length_of(d.begin, d.end) > (uint64_t)d.grain) {
    if (nothing_on_offer(w)) {
      _Alignas(16) char acc[REDUCE_MOST];
      __builtin_memcpy(acc, d.identity, d.r->size);
      reduction right = d;
      right.begin = d.end = d.begin + (int64_t)(length_of(d.begin, d.end) / 2);
      right.acc = acc;
      threadpool_job job;
      threadpool_fork(w, &job, run_reduction, &right);
      run_reduction(w, &d);
      threadpool_sync(w, &job);
      d.r->merge(d.acc, acc, d.arg);
      return;
    }
    d.r->fold(w, d.begin, d.begin + d.grain, d.acc, d.arg);
    d.begin += d.grain;
  }
  if (d.begin < d.end) d.r->fold(w, d.begin, d.end, d.acc, d.arg);
}

int threadpool_reduce(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                      const threadpool_reducer *reducer, void *result, void *arg) {
  int error = check(w, grain, reducer && reducer->fold && reducer->merge && result);
  if (error) return error;
  if (reducer->size == 0 || reducer->size > REDUCE_MOST) return ERR_INVALID_ARGUMENT;
  if (!grain) grain = default_grain(w, length_of(begin, end));
  _Alignas(16) char identity[REDUCE_MOST];
  __builtin_memcpy(identity, result, reducer->size);
  reduction d = {reducer, identity, result, arg, begin, end, grain};
  run_reduction(w, &d);
  return 0;
}

/* --- map */

typedef struct mapping {
  const char *in;
  char *out;
  size_t in_size, out_size;
  threadpool_map_fn fn;
  void *arg;
} mapping;

static void map_range(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  mapping *m = arg;
  for (int64_t i = begin; i < end; i++)
    m->fn(w, m->in + (size_t)i * m->in_size, m->out + (size_t)i * m->out_size, m->arg);
}

int threadpool_map(threadpool_worker *w, const void *in, size_t in_size, void *out, size_t out_size,
                   int64_t n, int64_t grain, threadpool_map_fn fn, void *arg) {
  if (!fn || n < 0 || (n > 0 && (!in || !out))) return ERR_INVALID_ARGUMENT;
  mapping m = {in, out, in_size, out_size, fn, arg};
  return threadpool_for(w, 0, n, grain, map_range, &m);
}

/* --- find */

typedef struct finding {
  threadpool_match_fn match;
  void *arg;
  _Atomic int64_t best; /* the lowest match so far; only ever lowered */
} finding;

static void find_range(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  finding *f = arg;
  for (int64_t i = begin; i < end; i++) {
    /* Relaxed: an old value only means looking at more than needed; the join orders the answer. */
    int64_t best = tp_load(&f->best, relaxed);
    if (i >= best) return;
    if (!f->match(w, i, f->arg)) continue;
    while (i < best && !tp_cas_weak(&f->best, &best, i, relaxed)) {
    }
    return;
  }
}

int threadpool_find(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                    threadpool_match_fn match, void *arg, int64_t *found) {
  if (!match || !found) return ERR_INVALID_ARGUMENT;
  finding f = {match, arg, end};
  int error = threadpool_for(w, begin, end, grain, find_range, &f);
  if (!error) *found = tp_load(&f.best, relaxed);
  return error;
}
