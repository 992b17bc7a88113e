/* test_together.c - work that can run at the same time does.
 *
 * By structure: each piece waits until another one runs beside it. A worker that is not woken, or work that
 * is out of its reach, is seen as a wait in vain. */
#include "test/help.h"

#include <pthread.h>
#include <unistd.h>

#include "threadpool_fork.h"

/* --- a loop with nearly all of its cost at the end
 *
 * Each expensive index is paired with one that another thread executes. So of two workers each executes
 * exactly half of them; if one of them sat idle, or had to be content with the cheap part, the other would
 * wait for a partner. */

enum { LENGTH = 30000, EXPENSIVE = LENGTH / 30 };

typedef struct {
  pthread_mutex_t lock;
  threadpool_worker *waiting; /* the worker that has no partner yet, or NULL */
  long begun;
  threadpool_worker *worker[2]; /* those seen, and what they have executed */
  long share[2];
  _Atomic long pairs;
} pairing;

static void count_share(pairing *p, threadpool_worker *w) {
  int k = p->worker[0] && p->worker[0] != w;
  test_must(!p->worker[k] || p->worker[k] == w);
  p->worker[k] = w;
  p->share[k]++;
}

static void find_partner(pairing *p, threadpool_worker *w) {
  pthread_mutex_lock(&p->lock);
  p->begun++;
  count_share(p, w);
  test_must(p->waiting != w);
  bool first = !p->waiting && p->begun < EXPENSIVE;
  p->waiting = first ? w : NULL;
  long pairs = tp_load(&p->pairs, relaxed); /* written under the lock */
  if (!first) tp_store(&p->pairs, pairs + 1, relaxed);
  pthread_mutex_unlock(&p->lock);
  if (first) test_wait(tp_load(&p->pairs, relaxed) > pairs);
}

static void skewed_body(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  for (int64_t i = begin; i < end; i++)
    if (i >= LENGTH - EXPENSIVE) find_partner(arg, w);
}

typedef struct {
  int64_t end;
  pairing pairing;
} skewed;
/* A task, so that the two workers are alone: a call from outside would bring a third thread. */
static tp_poll skewed_loop(tp_task *t, void *arg) {
  (void)t;
  skewed *s = arg;
  test_must(threadpool_for(threadpool_current(), 0, s->end, 1, skewed_body, &s->pairing) == 0);
  return TP_READY;
}

static void both_workers_execute_the_expensive_end_of_a_loop(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  for (int i = 0; i < test_size(3, 20); i++) {
    skewed s = {.end = LENGTH, .pairing = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    assert_int_equal(test_end_of(test_spawn(pool, skewed_loop, &s)), 0);
    assert_int_equal(s.pairing.begun, EXPENSIVE);
    assert_int_equal(s.pairing.share[0], EXPENSIVE / 2);
    assert_int_equal(s.pairing.share[1], EXPENSIVE / 2);
    /* What is known of this function is now that it is short. */
    for (int k = 0; k < 20; k++) {
      skewed none = {.end = 10};
      assert_int_equal(test_end_of(test_spawn(pool, skewed_loop, &none)), 0);
    }
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- four tasks, two workers */

enum { TASKS = 4 };

typedef struct {
  _Atomic int begun, running, over;
} pairs;

static tp_poll run_beside_another(tp_task *t, void *arg) {
  (void)t;
  pairs *p = arg;
  test_must(tp_add(&p->running, 1, relaxed) < 2);
  int nth = tp_add(&p->begun, 1, relaxed);
  test_wait(tp_load(&p->begun, relaxed) > (nth | 1)); /* 0 with 1, 2 with 3 */
  tp_sub(&p->running, 1, relaxed);
  tp_add(&p->over, 1, release);
  return TP_READY;
}

static void post_four(threadpool_t *pool, pairs *p) {
  tp_spawn_spec spec = {.poll = run_beside_another, .arg = p, .priority = TP_NORMAL};
  for (int i = 0; i < TASKS; i++) test_must(tp_spawn(pool->tasks, &spec, NULL) == 0);
}

static void four_from_outside(threadpool_t *pool) {
  pairs p = {0};
  post_four(pool, &p);
  test_wait(tp_load(&p.over, acquire) == TASKS);
}

typedef struct {
  threadpool_t *pool;
  pairs pairs;
} inside;
static tp_poll post_four_inside(tp_task *t, void *arg) {
  (void)t;
  inside *in = arg;
  post_four(in->pool, &in->pairs);
  return TP_READY;
}
static void four_from_one_worker(threadpool_t *pool) {
  inside in = {.pool = pool};
  assert_int_equal(test_end_of(test_spawn(pool, post_four_inside, &in)), 0);
  test_wait(tp_load(&in.pairs.over, acquire) == TASKS);
}

static void four_tasks_run_two_by_two_on_two_workers(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  for (int i = 0; i < test_size(200, 2000); i++) {
    if (i % 2) test_wait(test_all_parked(pool));
    four_from_outside(pool);
    if (i % 2) test_wait(test_all_parked(pool));
    four_from_one_worker(pool);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static tp_poll be_short(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic long *)arg, 1, release);
  return TP_READY;
}
typedef struct {
  long left;
  _Atomic long done;
} shorts;
static tp_poll spawn_shorts(tp_task *t, void *arg) {
  shorts *s = arg;
  for (int i = 0; i < 100; i++, s->left--) {
    tp_spawn_spec spec = {.poll = be_short, .arg = (void *)&s->done, .priority = TP_NORMAL};
    test_must(tp_spawn(t->tasks, &spec, NULL) == 0);
  }
  return s->left > 0 ? TP_YIELD : TP_READY;
}
static tp_poll wait_for_child(tp_task *t, void *arg) {
  shorts *s = arg;
  tp_spawn_spec spec = {.poll = be_short, .arg = (void *)&s->done, .priority = TP_NORMAL};
  test_must(tp_spawn(t->tasks, &spec, NULL) == 0);
  test_wait(tp_load(&s->done, acquire) == 1);
  return TP_READY;
}
/* Who has learnt that tasks are short may put a wake off, but not for good. */
static void four_tasks_run_two_by_two_after_thousands_of_short_ones(void **state) {
  (void)state;
  enum { SHORTS = 10000 };
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  for (int i = 0; i < test_size(5, 50); i++) {
    shorts s = {SHORTS, 0};
    assert_int_equal(test_end_of(test_spawn(pool, spawn_shorts, &s)), 0);
    for (int k = 0; k < SHORTS; k++) {
      tp_spawn_spec spec = {.poll = be_short, .arg = (void *)&s.done, .priority = TP_NORMAL};
      assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
    }
    test_wait(tp_load(&s.done, acquire) == 2 * SHORTS);
    test_wait(test_all_parked(pool));
    if (i % 3 == 0) { /* one child, which stays in the LIFO slot */
      s.done = 0;
      assert_int_equal(test_end_of(test_spawn(pool, wait_for_child, &s)), 0);
    } else if (i % 3 == 1) {
      four_from_one_worker(pool);
    } else {
      four_from_outside(pool);
    }
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static tp_poll take_a_second(tp_task *t, void *arg) {
  (void)t, (void)arg;
  uint64_t end = tp_now_ns() + TP_NS_PER_S;
  for (uint64_t now; (now = tp_now_ns()) < end;) usleep((useconds_t)((end - now) / 1000 + 1));
  return TP_READY;
}
/* The one test here that looks at the clock: one after another would be 4 s, three and one 3 s. */
static void four_tasks_of_a_second_take_two_on_two_workers(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  test_wait(test_all_parked(pool));
  uint64_t began = tp_now_ns();
  tp_task *t[TASKS];
  for (int i = 0; i < TASKS; i++) t[i] = test_spawn(pool, take_a_second, NULL);
  for (int i = 0; i < TASKS; i++) assert_int_equal(test_end_of(t[i]), 0);
  uint64_t took_ms = (tp_now_ns() - began) / TP_NS_PER_MS;
  assert_in_range(took_ms, 2000, 2899);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- a fork on a pool that sleeps */

static void set_flag(threadpool_worker *w, void *arg) {
  (void)w;
  tp_store((_Atomic bool *)arg, true, release);
}
static void wait_for_flag(threadpool_worker *w, void *arg) {
  (void)w;
  test_wait(tp_load((_Atomic bool *)arg, acquire));
}
static void join_flag(threadpool_worker *w, void *arg) {
  test_must(threadpool_join(w, wait_for_flag, arg, set_flag, arg) == 0);
}
static void a_fork_wakes_a_pool_that_is_asleep(void **state) {
  (void)state;
  for (int workers = 1; workers <= 3; workers++) {
    threadpool_t *pool = test_pool((threadpool_options){.workers = workers});
    for (int i = 0; i < test_size(100, 400); i++) {
      _Atomic bool flag = false;
      test_wait(test_all_parked(pool));
      assert_int_equal(threadpool_call(pool, join_flag, (void *)&flag), 0);
    }
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_workers_execute_the_expensive_end_of_a_loop),
      cmocka_unit_test(four_tasks_run_two_by_two_on_two_workers),
      cmocka_unit_test(four_tasks_run_two_by_two_after_thousands_of_short_ones),
      cmocka_unit_test(four_tasks_of_a_second_take_two_on_two_workers),
      cmocka_unit_test(a_fork_wakes_a_pool_that_is_asleep),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
