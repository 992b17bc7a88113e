/* test_wait.c - waiting inside the pool: who may give its seat away, who may wait for what, and that nothing is
 * out of reach behind those who do not wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <pthread.h>

#include <cmocka.h>

#include "api/pool.h"
#include "help.h"
#include "threadpool_fork.h"

static threadpool_t *pool;
static _Atomic bool go, begun;
static _Atomic int codes[4];

static tp_poll ready(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}
static tp_poll when_go(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return tp_load(&go, acquire) ? TP_READY : TP_PENDING;
}
static tp_task *spawn_in(threadpool_t *in, tp_poll_fn poll, void *arg, bool blocking) {
  tp_task *t = NULL;
  tp_spawn_spec spec = {.poll = poll, .arg = arg, .priority = TP_NORMAL, .blocking = blocking};
  test_must(tp_spawn(in->tasks, &spec, &t) == 0);
  return t;
}
static void wait_and_drop(tp_task *t) {
  test_must(tp_task_wait(t, 0) == 0);
  tp_task_unref(t);
}
static void begin(int workers) {
  pool = test_pool((threadpool_options){.workers = workers});
  tp_store(&go, false, relaxed);
  tp_store(&begun, false, relaxed);
}
static void finish(void) {
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- who may give its seat away. Wrong: two threads sit in one seat, and the shutdown hangs. */

static tp_task *target; /* pending until go */

static void wait_in_seat(threadpool_worker *w, void *code) {
  tp_store((_Atomic int *)code, tp_task_wait(target, 0), relaxed);
  test_must(threadpool_current() == w);
  tp_store(&begun, true, release);
}
static void hold(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
  tp_store(&begun, true, release);
  test_wait(tp_load(&go, acquire));
}
/* Its only fork is with another worker. */
static tp_poll wait_with_a_fork(tp_task *t, void *code) {
  (void)t;
  threadpool_worker *w = threadpool_current();
  threadpool_job job;
  threadpool_fork(w, &job, hold, NULL);
  test_wait(tp_load(&begun, acquire));
  tp_store((_Atomic int *)code, tp_task_wait(target, 0), relaxed);
  test_must(threadpool_current() == w);
  tp_store(&go, true, release);
  threadpool_sync(w, &job);
  return TP_READY;
}
/* The job that waits was stolen. */
static tp_poll let_a_stolen_job_wait(tp_task *t, void *code) {
  (void)t;
  threadpool_worker *w = threadpool_current();
  threadpool_job job;
  threadpool_fork(w, &job, wait_in_seat, code);
  test_wait(tp_load(&begun, acquire));
  threadpool_sync(w, &job);
  return TP_READY;
}
static tp_poll wait_in_a_scope(tp_task *t, void *code) {
  (void)t;
  threadpool_worker *w = threadpool_current();
  threadpool_scope scope;
  test_must(threadpool_scope_begin(w, &scope) == 0);
  tp_store((_Atomic int *)code, tp_task_wait(target, 0), relaxed);
  test_must(threadpool_scope_end(w, &scope) == 0);
  return TP_READY;
}
static void a_seat_is_kept_while_something_belongs_to_it(void **state) {
  (void)state;
  const tp_poll_fn cases[] = {wait_with_a_fork, let_a_stolen_job_wait, wait_in_a_scope};
  for (int i = 0; i < 3; i++) {
    begin(2);
    target = spawn_in(pool, when_go, NULL, false);
    tp_store(&codes[i], 1, relaxed);
    wait_and_drop(spawn_in(pool, cases[i], (void *)&codes[i], false));
    assert_int_equal(codes[i], ERR_WRONG_THREAD);
    tp_store(&codes[i], 1, relaxed);
    if (i == 2) assert_int_equal(threadpool_broadcast(pool, wait_in_seat, (void *)&codes[i]), 0);
    if (i == 2) assert_int_equal(codes[i], ERR_WRONG_THREAD);
    tp_store(&go, true, release);
    tp_task_wake(target);
    wait_and_drop(target);
    finish();
  }
}

/* --- who may wait for what */

static void *wait_for_target(void *code) {
  tp_store((_Atomic int *)code, tp_task_wait(target, 0), release);
  return NULL;
}
/* Wrong: the first of two waits for ever. */
static void only_one_waits_for_a_task(void **state) {
  (void)state;
  begin(1);
  target = spawn_in(pool, when_go, NULL, false);
  tp_store(&codes[0], 1, relaxed);
  pthread_t first;
  assert_int_equal(pthread_create(&first, NULL, wait_for_target, (void *)&codes[0]), 0);
  test_wait(tp_load(&target->state, acquire) & TP_JOIN_INTEREST);
  assert_int_equal(tp_task_wait(target, 0), ERR_BUSY);
  tp_store(&go, true, release);
  tp_task_wake(target);
  pthread_join(first, NULL);
  assert_int_equal(codes[0], 0);
  tp_task_unref(target);
  finish();
}

static threadpool_t *other;
static tp_poll wait_for_the_first(tp_task *t, void *arg) {
  (void)t, (void)arg;
  wait_and_drop(spawn_in(pool, ready, NULL, false));
  return TP_READY;
}
static tp_poll wait_for_the_other(tp_task *t, void *arg) {
  (void)t, (void)arg;
  wait_and_drop(spawn_in(other, wait_for_the_first, NULL, false));
  return TP_READY;
}
/* Wrong: each pool's only worker waits for the other one's. */
static void pools_may_wait_for_each_other(void **state) {
  (void)state;
  begin(1);
  other = test_pool((threadpool_options){.workers = 1});
  wait_and_drop(spawn_in(pool, wait_for_the_other, NULL, false));
  assert_int_equal(threadpool_shutdown(other), 0);
  finish();
}

static tp_poll shut_down(tp_task *t, void *code) {
  (void)t;
  tp_store((_Atomic int *)code, threadpool_shutdown(pool), relaxed);
  return TP_READY;
}
static void shut_down_in_a_call(threadpool_worker *w, void *code) {
  (void)w;
  tp_store((_Atomic int *)code, threadpool_shutdown(pool), relaxed);
}
static void call_the_other(threadpool_worker *w, void *code) {
  (void)w;
  test_must(threadpool_call(other, shut_down_in_a_call, code) == 0);
}
/* Wrong: it waits for its own end. */
static void a_pool_is_not_shut_down_from_inside(void **state) {
  (void)state;
  begin(1);
  other = test_pool((threadpool_options){.workers = 1});
  for (int i = 0; i < 4; i++) tp_store(&codes[i], 1, relaxed);
  wait_and_drop(spawn_in(pool, shut_down, (void *)&codes[0], false));
  wait_and_drop(spawn_in(pool, shut_down, (void *)&codes[1], true)); /* a thread without a seat */
  assert_int_equal(threadpool_call(pool, call_the_other, (void *)&codes[2]), 0);
  for (int i = 0; i < 3; i++) assert_int_equal(codes[i], ERR_WRONG_THREAD);
  assert_int_equal(threadpool_shutdown(other), 0);
  finish();
}

/* --- nothing is out of reach */

static tp_poll drop_an_awaited_child(tp_task *t, void *outcome) {
  tp_task *child = spawn_in(pool, ready, NULL, false);
  if (tp_task_await(t, child) == TP_PENDING) tp_store(&begun, true, relaxed);
  tp_task_unref(child);
  return *(tp_poll *)outcome;
}
/* Wrong: the child is in no queue, and the shutdown waits for it. */
static void a_child_runs_though_its_parent_goes_on(void **state) {
  (void)state;
  begin(1);
  tp_poll outcome = TP_READY;
  wait_and_drop(spawn_in(pool, drop_an_awaited_child, &outcome, false));
  assert_true(begun); /* it had been taken out of the LIFO slot */
  finish();
}

typedef struct {
  tp_task *child;
  long loops;
} looping;
static tp_poll await_for_ever(tp_task *t, void *arg) {
  looping *l = arg;
  for (;;) {
    if (l->child && tp_task_await(t, l->child) == TP_PENDING) return TP_PENDING;
    if (l->child) tp_task_unref(l->child);
    l->child = NULL;
    tp_store(&begun, true, relaxed);
    if (tp_load(&go, acquire)) return TP_READY;
    l->child = spawn_in(pool, ready, NULL, false);
  }
}
static tp_poll say_go(tp_task *t, void *arg) {
  (void)t, (void)arg;
  tp_store(&go, true, release);
  return TP_READY;
}
/* Wrong: parent and child take turns on the only worker, and nobody else ever runs. */
static void a_task_that_awaits_in_a_loop_lets_others_run(void **state) {
  (void)state;
  begin(1);
  looping l = {0};
  tp_task *t = spawn_in(pool, await_for_ever, &l, false);
  test_wait(tp_load(&begun, relaxed));
  wait_and_drop(spawn_in(pool, say_go, NULL, false));
  wait_and_drop(t);
  finish();
}

static tp_poll yield_until_go(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return tp_load(&go, acquire) ? TP_READY : TP_YIELD;
}
static tp_poll spawn_and_hold(tp_task *t, void *arg) {
  (void)t, (void)arg;
  tp_task_unref(spawn_in(pool, say_go, NULL, false)); /* into the LIFO slot of this seat */
  test_wait(tp_load(&go, acquire));
  return TP_READY;
}
/* Wrong: the other worker always has something to do, never steals, and the child is never reached. */
static void a_task_behind_a_long_one_is_reached_by_a_busy_worker(void **state) {
  (void)state;
  begin(2);
  tp_task *busy[3], *holds = spawn_in(pool, spawn_and_hold, NULL, false);
  for (int i = 0; i < 3; i++) busy[i] = spawn_in(pool, yield_until_go, NULL, false);
  wait_and_drop(holds);
  for (int i = 0; i < 3; i++) wait_and_drop(busy[i]);
  finish();
}

/* S1. Wrong: 2^32 - 1 workers seem to idle, and a poster wakes nobody. */
static void nobody_idles_while_a_waker_has_yet_to_count_down(void **state) {
  (void)state;
  assert_int_equal(tp_idle_of(2 * TP_SLEEPING_ONE + 1 * TP_INACTIVE_ONE), 0);
  assert_int_equal(tp_idle_of(2 * TP_SLEEPING_ONE + 2 * TP_INACTIVE_ONE), 0);
  assert_int_equal(tp_idle_of(TP_JEC_ONE + 2 * TP_SLEEPING_ONE + 5 * TP_INACTIVE_ONE), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_seat_is_kept_while_something_belongs_to_it),
      cmocka_unit_test(only_one_waits_for_a_task),
      cmocka_unit_test(pools_may_wait_for_each_other),
      cmocka_unit_test(a_pool_is_not_shut_down_from_inside),
      cmocka_unit_test(a_child_runs_though_its_parent_goes_on),
      cmocka_unit_test(a_task_that_awaits_in_a_loop_lets_others_run),
      cmocka_unit_test(nobody_idles_while_a_waker_has_yet_to_count_down),
      cmocka_unit_test(a_task_behind_a_long_one_is_reached_by_a_busy_worker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
