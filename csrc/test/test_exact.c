/* test_exact.c - ten million tasks, each run exactly once, on every way a task can take.
 *
 * Each task has a byte of its own: a lost one leaves 0 there, one that was run twice 2. */
#include "test/help.h"

#include <pthread.h>
#include <sys/resource.h>

enum {
  PRODUCERS = 8,
  WINDOW = 15000,   /* tasks of one producer that are under way at once: memory stays bounded */
  BACKLOG = 100000, /* the same of one loaded ring */
  BURST = 1000,
  NAP_AFTER = 10000,
  MOST_MB = 150,
};

static threadpool_t *pool;
static _Atomic unsigned char *counted;
static long all;

static void begin(long tasks) {
  all = tasks;
  counted = calloc((size_t)all, 1);
  assert_non_null((void *)counted);
}

static bool was_run(long i) {
  return tp_load(&counted[i], relaxed) > 0;
}

static void wait_for_all(void) {
  for (long i = 0; i < all; i++) test_wait(was_run(i));
}

static void each_was_run_once(void) {
  wait_for_all();
  assert_int_equal(threadpool_shutdown(pool), 0);
  long wrong = 0;
  for (long i = 0; i < all; i++) wrong += counted[i] != 1;
  free((void *)counted);
  assert_int_equal(wrong, 0);
#ifndef TEST_SANITIZED
  struct rusage use;
  assert_int_equal(getrusage(RUSAGE_SELF, &use), 0);
  assert_in_range(use.ru_maxrss / 1024, 1, MOST_MB + all / 1000000); /* and the bytes themselves */
#endif
}

static tp_poll count_me(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic unsigned char *)arg, 1, relaxed); /* looked at after the end of all */
  return TP_READY;
}

static void spawn_counted(tp_tasks *ts, long i, tp_priority p) {
  tp_spawn_spec spec = {.poll = count_me, .arg = (void *)&counted[i], .priority = p};
  test_must(tp_spawn(ts, &spec, NULL) == 0);
}

/* --- from outside */

static bool let_workers_sleep;

static void *producer(void *arg) {
  long each = all / PRODUCERS, from = (long)(intptr_t)arg * each;
  uint64_t parked = test_stats(pool).parked;
  for (long i = 0; i < each; i++) {
    spawn_counted(pool->tasks, from + i, (tp_priority)(i % 3));
    if (i >= WINDOW && i % BURST == 0) /* one of each priority */
      for (long k = i - WINDOW; k < i - WINDOW + 3; k++) test_wait(was_run(from + k));
    if (let_workers_sleep && i % NAP_AFTER == NAP_AFTER - 1) {
      /* Somebody was awake at the last look, or has been woken for this burst: it goes to sleep. */
      test_wait(test_stats(pool).parked > parked);
      parked = test_stats(pool).parked;
    }
  }
  return NULL;
}

static void run_producers(void) {
  pool = test_pool((threadpool_options){.workers = 4});
  pthread_t t[PRODUCERS];
  for (long i = 0; i < PRODUCERS; i++)
    assert_int_equal(pthread_create(&t[i], NULL, producer, (void *)(intptr_t)i), 0);
  for (int i = 0; i < PRODUCERS; i++) pthread_join(t[i], NULL);
}

static void tasks_of_many_producers_run_exactly_once(void **state) {
  (void)state;
  begin(test_size(200000, 10000000));
  let_workers_sleep = false;
  run_producers();
  each_was_run_once();
}

/* A burst that met sleepers and woke nobody would be seen as a wait in vain. */
static void tasks_run_exactly_once_while_workers_fall_asleep_in_between(void **state) {
  (void)state;
  begin(test_size(200000, 10000000));
  let_workers_sleep = true;
  run_producers();
  assert_true(test_stats(pool).wakes_by_post > 0);
  each_was_run_once();
}

/* --- from one worker */

static tp_poll spawn_bursts(tp_task *t, void *arg) {
  long *next = arg;
  for (int i = 0; i < BURST && *next < all; i++, ++*next) {
    if (*next >= BACKLOG && !was_run(*next - BACKLOG)) break;
    spawn_counted(t->tasks, *next, TP_NORMAL);
  }
  return *next < all ? TP_YIELD : TP_READY;
}

/* Its ring overflows into the global queue, others take half of it, or what is in its LIFO slot. */
static void tasks_of_one_loaded_ring_run_exactly_once(void **state) {
  (void)state;
  begin(test_size(200000, 10000000));
  pool = test_pool((threadpool_options){.workers = 4});
  long next = 0;
  tp_task *t = test_spawn(pool, spawn_bursts, &next);
  wait_for_all(); /* with one lost it would go round for ever */
  assert_int_equal(test_end_of(t), 0);
  threadpool_counters c = test_stats(pool);
  each_was_run_once();
  assert_true(c.overflowed > 0);
  assert_true(c.from_normal > 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tasks_of_many_producers_run_exactly_once),
      cmocka_unit_test(tasks_run_exactly_once_while_workers_fall_asleep_in_between),
      cmocka_unit_test(tasks_of_one_loaded_ring_run_exactly_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
