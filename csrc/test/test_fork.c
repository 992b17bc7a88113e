/* test_fork.c - fork and join through the public interface: calls, join, scope, loops, sort, broadcast. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/rng.h"
#include "threadpool_fork.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

static threadpool_t *pool_of(int workers) {
  threadpool_options o = {.workers = workers};
  int error = 1;
  threadpool_t *pool = threadpool_create_with(&o, &error);
  assert_non_null(pool);
  assert_int_equal(error, 0);
  return pool;
}

static void close_pool(threadpool_t *pool) {
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- fib: forks without a cutoff */

struct fib_call {
  int n;
  long result;
};
static long fib(threadpool_worker *w, int n);
static void fib_run(threadpool_worker *w, void *arg) {
  struct fib_call *c = arg;
  c->result = fib(w, c->n);
}
static long fib(threadpool_worker *w, int n) {
  if (n < 2) return n;
  if (threadpool_enough(w)) return fib(w, n - 1) + fib(w, n - 2);
  struct fib_call b = {n - 2, 0};
  threadpool_job job;
  threadpool_fork(w, &job, fib_run, &b);
  long a = fib(w, n - 1);
  threadpool_sync(w, &job);
  return a + b.result;
}

static void fib_is_right_for_any_number_of_workers(void **state) {
  (void)state;
  const int workers[] = {1, 2, 3, 64, 65, 200};
  for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
    threadpool_t *pool = pool_of(workers[i]);
    for (int k = 0; k < 3; k++) {
      struct fib_call c = {getenv("TP_QUICK") ? 16 : 24, 0};
      assert_int_equal(threadpool_call(pool, fib_run, &c), 0);
      assert_int_equal(c.result, getenv("TP_QUICK") ? 987 : 46368);
    }
    close_pool(pool);
  }
}

/* --- a fork is reachable although its owner only spins */

static void set_flag(threadpool_worker *w, void *arg) {
  (void)w;
  tp_store((_Atomic bool *)arg, true, release);
}
static void spin_for_flag(threadpool_worker *w, void *arg) {
  (void)w;
  while (!tp_load((_Atomic bool *)arg, acquire)) tp_pause();
}
static void join_spin(threadpool_worker *w, void *arg) {
  assert_int_equal(threadpool_join(w, spin_for_flag, arg, set_flag, arg), 0);
}

/* If the fork woke nobody, this would hang. */
static void a_fork_is_taken_while_its_owner_spins(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(1);
  for (int i = 0; i < scale(10000); i++) {
    _Atomic bool flag = false;
    assert_int_equal(threadpool_call(pool, join_spin, &flag), 0);
  }
  close_pool(pool);
}

static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}
static void short_or_spin(threadpool_worker *w, void *arg) {
  if (arg)
    join_spin(w, arg);
  else
    threadpool_join(w, nothing, NULL, nothing, NULL);
}
/* The same function after many short runs, whose wakes are left to the alarm: the alarm has to do it. */
static void a_fork_is_taken_after_short_runs_too(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(1);
  for (int i = 0; i < scale(100); i++) {
    for (int k = 0; k < 20; k++) threadpool_call(pool, short_or_spin, NULL);
    _Atomic bool flag = false;
    assert_int_equal(threadpool_call(pool, short_or_spin, &flag), 0);
  }
  close_pool(pool);
}

/* --- scope */

typedef struct {
  threadpool_scope *scope;
  _Atomic long *count;
  int depth;
} spawn_args;

static void spawn_tree(threadpool_worker *w, void *arg) {
  spawn_args a = *(spawn_args *)arg;
  free(arg);
  tp_add(a.count, 1, relaxed);
  for (int i = 0; a.depth > 0 && i < 3; i++) {
    spawn_args *child = malloc(sizeof *child);
    *child = (spawn_args){a.scope, a.count, a.depth - 1};
    assert_int_equal(threadpool_spawn(w, a.scope, spawn_tree, child), 0);
  }
}

static void scope_root(threadpool_worker *w, void *arg) {
  threadpool_scope scope;
  assert_int_equal(threadpool_scope_begin(w, &scope), 0);
  spawn_args *root = malloc(sizeof *root);
  *root = (spawn_args){&scope, arg, 8};
  assert_int_equal(threadpool_spawn(w, &scope, spawn_tree, root), 0);
  assert_int_equal(threadpool_scope_end(w, &scope), 0);
}

static void a_scope_runs_every_spawn_once(void **state) {
  (void)state;
  for (int workers = 1; workers <= 4; workers++) {
    threadpool_t *pool = pool_of(workers);
    for (int i = 0; i < scale(20); i++) {
      _Atomic long count = 0;
      threadpool_call(pool, scope_root, &count);
      assert_int_equal(count, 9841); /* (3^9 - 1) / 2 */
    }
    close_pool(pool);
  }
}

/* --- loops */

enum { LENGTH = 100000 };
static _Atomic unsigned char seen[LENGTH];

static void mark(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  (void)w, (void)arg;
  for (int64_t i = begin; i < end; i++) tp_add(&seen[i], 1, relaxed);
}
static void loop_root(threadpool_worker *w, void *arg) {
  assert_int_equal(threadpool_for(w, 0, LENGTH, *(int64_t *)arg, mark, NULL), 0);
}
static void a_loop_covers_its_range_exactly_once(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(3);
  for (int64_t grain = 0; grain < 3000; grain = grain * 3 + 1) {
    memset((void *)seen, 0, sizeof seen);
    threadpool_call(pool, loop_root, &grain);
    for (int i = 0; i < LENGTH; i++) assert_int_equal(seen[i], 1);
  }
  close_pool(pool);
}

/* Order matters in this fold: the digits come out in order only if the merges keep it. */
typedef struct {
  int64_t first, last, sum;
} span;
static void fold_span(threadpool_worker *w, int64_t begin, int64_t end, void *acc, void *arg) {
  (void)w, (void)arg;
  span *s = acc;
  for (int64_t i = begin; i < end; i++) {
    if (s->first < 0)
      s->first = i;
    else
      assert_int_equal(s->last + 1, i);
    s->last = i;
    s->sum += i;
  }
}
static void merge_span(void *acc, const void *right, void *arg) {
  (void)arg;
  span *a = acc;
  const span *b = right;
  if (b->first < 0) return;
  if (a->first < 0)
    *a = *b;
  else {
    assert_int_equal(a->last + 1, b->first);
    a->last = b->last;
    a->sum += b->sum;
  }
}
static void reduce_root(threadpool_worker *w, void *arg) {
  threadpool_reducer r = {sizeof(span), fold_span, merge_span};
  assert_int_equal(threadpool_reduce(w, 0, LENGTH, 7, &r, arg, NULL), 0);
}
static void reduce_keeps_the_order(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(3);
  for (int i = 0; i < scale(20); i++) {
    span s = {-1, -1, 0};
    threadpool_call(pool, reduce_root, &s);
    assert_int_equal(s.sum, (int64_t)LENGTH * (LENGTH - 1) / 2);
    assert_int_equal(s.last, LENGTH - 1);
  }
  close_pool(pool);
}

static void twice(threadpool_worker *w, const void *in, void *out, void *arg) {
  (void)w, (void)arg;
  *(int64_t *)out = 2 * *(const int *)in;
}
static bool at_least(threadpool_worker *w, int64_t i, void *arg) {
  (void)w;
  return i >= *(int64_t *)arg;
}
static void map_and_find_root(threadpool_worker *w, void *arg) {
  (void)arg;
  static int in[5000];
  static int64_t out[5000];
  for (int i = 0; i < 5000; i++) in[i] = i;
  assert_int_equal(threadpool_map(w, in, sizeof *in, out, sizeof *out, 5000, 0, twice, NULL), 0);
  for (int i = 0; i < 5000; i++) assert_int_equal(out[i], 2 * i);
  for (int64_t want = 0; want < 5000; want += 499) {
    int64_t found = -1;
    assert_int_equal(threadpool_find(w, 0, 4000, 10, at_least, &want, &found), 0);
    assert_int_equal(found, want < 4000 ? want : 4000);
  }
  int64_t want = 0, found = -1;
  assert_int_equal(threadpool_find(w, 5, 5, 0, at_least, &want, &found), 0);
  assert_int_equal(found, 5);
}
static void map_and_find(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(3);
  threadpool_call(pool, map_and_find_root, NULL);
  close_pool(pool);
}

/* --- sort */

typedef struct {
  int key, place;
} item;
static int by_key(const void *a, const void *b, void *arg) {
  (void)arg;
  return ((const item *)a)->key - ((const item *)b)->key;
}
static void sort_root(threadpool_worker *w, void *arg) {
  (void)arg;
  tp_rng r;
  tp_rng_seed(&r, 7);
  const size_t sizes[] = {0, 1, 2, 3, 19, 20, 21, 41, 1000, 8193, 50001, 100000};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    size_t n = sizes[k];
    uint64_t *u = malloc(n * sizeof *u + 1), sum = 0;
    int64_t *i64 = malloc(n * sizeof *i64 + 1);
    double *f = malloc(n * sizeof *f + 1);
    item *items = malloc(n * sizeof *items + 1);
    for (size_t i = 0; i < n; i++) {
      sum += u[i] = tp_rng_next(&r) >> (k % 3 * 25);
      i64[i] = (int64_t)tp_rng_next(&r);
      f[i] = i % 100 == 99 ? __builtin_nan("") : (double)i64[i];
      items[i] = (item){(int)tp_rng_below(&r, 50), (int)i};
    }
    assert_int_equal(threadpool_sort_u64(w, u, n), 0);
    assert_int_equal(threadpool_sort_i64(w, i64, n), 0);
    assert_int_equal(threadpool_sort_f64(w, f, n), 0);
    assert_int_equal(threadpool_sort(w, items, n, sizeof *items, by_key, NULL), 0);
    for (size_t i = 0; i < n; i++) {
      sum -= u[i];
      if (i == 0) continue;
      assert_true(u[i - 1] <= u[i]);
      assert_true(i64[i - 1] <= i64[i]);
      assert_true(f[i - 1] <= f[i] || f[i] != f[i]);
      assert_true(items[i - 1].key < items[i].key ||
                  (items[i - 1].key == items[i].key && items[i - 1].place < items[i].place));
    }
    assert_int_equal(sum, 0);
    free(u), free(i64), free(f), free(items);
  }
}
static void sorts_are_right_and_stable(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(3);
  threadpool_call(pool, sort_root, NULL);
  close_pool(pool);
}

/* --- broadcast, several callers at once */

static void count_one(threadpool_worker *w, void *arg) {
  (void)w;
  tp_add((_Atomic int *)arg, 1, relaxed);
}
static threadpool_t *shared_pool;
static void broadcast_inside(threadpool_worker *w, void *arg) {
  (void)w;
  assert_int_equal(threadpool_broadcast(shared_pool, count_one, arg), 0);
}
static void *broadcaster(void *arg) {
  for (int i = 0; i < scale(200); i++) {
    _Atomic int count = 0;
    assert_int_equal(threadpool_broadcast(shared_pool, count_one, &count), 0);
    assert_int_equal(count, 3);
    count = 0;
    assert_int_equal(threadpool_call(shared_pool, broadcast_inside, &count), 0);
    assert_int_equal(count, 3);
    struct fib_call c = {12, 0};
    assert_int_equal(threadpool_call(shared_pool, fib_run, &c), 0);
    assert_int_equal(c.result, 144);
  }
  return arg;
}
static void broadcasts_and_calls_from_many_threads(void **state) {
  (void)state;
  shared_pool = pool_of(3);
  pthread_t t[4];
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, broadcaster, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  close_pool(shared_pool);
}

/* --- bad input, failure, life */

static void bad_input_root(threadpool_worker *w, void *arg) {
  assert_int_equal(threadpool_shutdown(arg), ERR_WRONG_THREAD);
  assert_int_equal(threadpool_join(w, NULL, NULL, nothing, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_for(w, 0, 1, -1, mark, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_sort(w, NULL, 3, 4, by_key, NULL), ERR_INVALID_ARGUMENT);
  assert_ptr_equal(threadpool_current(), w);
}
static void bad_input_gets_a_code(void **state) {
  (void)state;
  const int bad[] = {-1, THREADPOOL_MAX_WORKERS + 1, 1 << 30};
  for (int i = 0; i < 3; i++) {
    threadpool_options o = {.workers = bad[i]};
    int error = 0;
    assert_null(threadpool_create_with(&o, &error));
    assert_int_equal(error, ERR_INVALID_ARGUMENT);
  }
  threadpool_t *pool = threadpool_create_with(NULL, NULL);
  assert_non_null(pool);
  assert_true(threadpool_workers(pool) >= 1);
  assert_int_equal(threadpool_call(pool, NULL, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_call(NULL, nothing, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_join(NULL, nothing, NULL, nothing, NULL), ERR_WRONG_THREAD);
  assert_null(threadpool_current());
  assert_int_equal(threadpool_call(pool, bad_input_root, pool), 0);
  threadpool_counters c;
  assert_int_equal(threadpool_stats(pool, 99999, &c), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_shutdown(pool), 0);
  assert_int_equal(threadpool_shutdown(pool), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_shutdown(NULL), ERR_INVALID_ARGUMENT);
}

static void creation_survives_every_failure(void **state) {
  (void)state;
  for (long nth = 1;; nth++) {
    threadpool_options o = {.workers = 3};
    int error = 0;
    tp_fail_at(nth);
    threadpool_t *pool = threadpool_create_with(&o, &error);
    bool fired = tp_fail_left() == 0;
    tp_fail_at(0);
    if (pool) close_pool(pool); /* some things it can do without */
    if (pool && !fired) break;
    if (pool) continue;
    assert_int_equal(error, ERR_MALLOC_FAILED);
  }
}

static void out_of_memory_a_spawn_is_a_call(void **state) {
  (void)state;
  threadpool_t *pool = pool_of(2);
  for (long nth = 1; nth < scale(200); nth += 7) {
    _Atomic long count = 0;
    tp_fail_at(nth);
    threadpool_call(pool, scope_root, &count);
    tp_fail_at(0);
    assert_int_equal(count, 9841);
  }
  close_pool(pool);
}

static void a_thousand_pools(void **state) {
  (void)state;
  threadpool_t *other = pool_of(2); /* lives beside them */
  for (int i = 0; i < scale(1000); i++) {
    threadpool_t *pool = pool_of(1 + i % 3);
    struct fib_call c = {10, 0};
    if (i % 2) threadpool_call(pool, fib_run, &c);
    threadpool_call(other, fib_run, &c);
    assert_int_equal(c.result, 55);
    close_pool(pool);
  }
  close_pool(other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fib_is_right_for_any_number_of_workers),
      cmocka_unit_test(a_fork_is_taken_while_its_owner_spins),
      cmocka_unit_test(a_fork_is_taken_after_short_runs_too),
      cmocka_unit_test(a_scope_runs_every_spawn_once),
      cmocka_unit_test(a_loop_covers_its_range_exactly_once),
      cmocka_unit_test(reduce_keeps_the_order),
      cmocka_unit_test(map_and_find),
      cmocka_unit_test(sorts_are_right_and_stable),
      cmocka_unit_test(broadcasts_and_calls_from_many_threads),
      cmocka_unit_test(bad_input_gets_a_code),
      cmocka_unit_test(creation_survives_every_failure),
      cmocka_unit_test(out_of_memory_a_spawn_is_a_call),
      cmocka_unit_test(a_thousand_pools),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
