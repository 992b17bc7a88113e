#include "test/help.h"

#include <sched.h>
#include <stdio.h>

enum { SPINS = 100, YIELDS = 1000, PATIENCE_S = 60 };

long test_size(long quick, long normal) {
  if (getenv("TP_QUICK")) return quick;
  return getenv("TP_STRESS") ? 10 * normal : normal;
}

threadpool_t *test_pool(threadpool_options o) {
  int error = 1;
  threadpool_t *pool = threadpool_create_with(&o, &error);
  assert_non_null(pool);
  assert_int_equal(error, 0);
  return pool;
}

tp_task *test_spawn(threadpool_t *pool, tp_poll_fn poll, void *arg) {
  tp_task *t = NULL;
  tp_spawn_spec spec = {.poll = poll, .arg = arg, .priority = TP_NORMAL};
  assert_int_equal(tp_spawn(pool->tasks, &spec, &t), 0);
  assert_non_null(t);
  return t;
}

int test_end_of(tp_task *t) {
  assert_int_equal(tp_task_wait(t, 0), 0);
  int code = tp_task_code(t);
  tp_task_unref(t);
  return code;
}

threadpool_counters test_stats(threadpool_t *pool) {
  threadpool_counters c;
  if (threadpool_stats(pool, -1, &c) != 0) abort();
  return c;
}

/* The sum of `parked` if each worker has been seen blocked, else 0. */
static uint64_t parked_if_all(threadpool_t *pool) {
  uint64_t sum = 0;
  for (int i = 0; i < threadpool_workers(pool); i++) {
    threadpool_counters c;
    if (threadpool_stats(pool, i, &c) != 0) abort();
    /* One sleep more than wakes; `woken` counts both kinds of sleep. */
    if (c.parked + c.waited != c.woken + 1) return 0;
    sum += c.parked;
  }
  return sum;
}

bool test_all_parked(threadpool_t *pool) {
  /* Twice the same: nobody has moved between the two, so there all of them slept at once. */
  uint64_t first = parked_if_all(pool);
  return first > 0 && parked_if_all(pool) == first;
}

void test_stop(const char *why, const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, why, what);
  abort();
}

void test_still_waiting(test_waiting *w, const char *file, int line, const char *what) {
  if (w->tries++ == 0) w->since_ns = tp_now_ns();
  if (w->tries < SPINS) {
    tp_pause();
    return;
  }
  if (tp_now_ns() > w->since_ns + PATIENCE_S * TP_NS_PER_S)
    test_stop("waited in vain", file, line, what);
  const struct timespec moment = {0, 50000};
  if (w->tries < YIELDS)
    sched_yield();
  else
    nanosleep(&moment, NULL);
}
