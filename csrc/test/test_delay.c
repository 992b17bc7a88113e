/* test_delay.c - tasks that sleep, and tasks that are ended by a deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/pool.h"
#include "base/clock.h"
#include "io/delay.h"

enum { SLEEPERS = 500 };

typedef struct {
  threadpool_t *pool;
  tp_alarm_clock clock;
  uint64_t until;
  bool started;
} sleeper;

static tp_poll sleep_task(tp_task *t, void *arg) {
  sleeper *s = arg;
  if (!s->started) {
    s->started = true;
    if (tp_sleep_start(&s->clock, s->pool->reactor, t, s->until) != 0) abort();
  }
  return tp_clock_fired(&s->clock) ? TP_READY : TP_PENDING;
}
static void sleep_end(tp_task *t) {
  tp_clock_stop(&((sleeper *)t->arg)->clock);
}

static void sleepers_wake_and_never_early(void **state) {
  (void)state;
  threadpool_t *pool = threadpool_create_with(&(threadpool_options){.workers = 2}, NULL);
  static sleeper s[SLEEPERS];
  tp_task *t[SLEEPERS];
  for (int i = 0; i < SLEEPERS; i++) {
    s[i] = (sleeper){.pool = pool, .until = tp_now_ns() + (uint64_t)(i % 20) * TP_NS_PER_MS};
    tp_spawn_spec spec = {
        .poll = sleep_task, .arg = &s[i], .end = sleep_end, .priority = TP_NORMAL};
    assert_int_equal(tp_spawn(pool->tasks, &spec, &t[i]), 0);
  }
  for (int i = 0; i < SLEEPERS; i++) {
    assert_int_equal(tp_task_wait(t[i], 0), 0);
    assert_int_equal(tp_task_code(t[i]), 0);
    assert_true(tp_now_ns() >= s[i].until);
    tp_task_unref(t[i]);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void cancelled_sleepers_end_at_once(void **state) {
  (void)state;
  threadpool_t *pool = threadpool_create_with(&(threadpool_options){.workers = 2}, NULL);
  static sleeper s[SLEEPERS];
  tp_task *t[SLEEPERS];
  for (int i = 0; i < SLEEPERS; i++) {
    s[i] = (sleeper){.pool = pool, .until = tp_now_ns() + 3600 * TP_NS_PER_S};
    tp_spawn_spec spec = {
        .poll = sleep_task, .arg = &s[i], .end = sleep_end, .priority = TP_NORMAL};
    assert_int_equal(tp_spawn(pool->tasks, &spec, &t[i]), 0);
    if (i % 2) assert_true(tp_task_cancel(t[i]));
  }
  for (int i = 0; i < SLEEPERS; i++) {
    if (i % 2 == 0) assert_true(tp_task_cancel(t[i]));
    assert_int_equal(tp_task_wait(t[i], 0), 0);
    assert_int_equal(tp_task_code(t[i]), ERR_CANCELLED);
    tp_task_unref(t[i]);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

typedef struct {
  tp_alarm_clock deadline;
  threadpool_t *pool;
  bool started;
} limited;
static tp_poll never(tp_task *t, void *arg) {
  limited *l = arg;
  if (!l->started) {
    l->started = true;
    if (tp_deadline_start(&l->deadline, l->pool->reactor, t, tp_now_ns() + TP_NS_PER_MS) != 0)
      abort();
  }
  return TP_PENDING;
}
static void timed_out(tp_task *t) {
  if (tp_clock_stop(&((limited *)t->arg)->deadline)) tp_task_fail(t, ERR_TIMEOUT);
}

static void a_deadline_ends_a_task(void **state) {
  (void)state;
  threadpool_t *pool = threadpool_create_with(&(threadpool_options){.workers = 2}, NULL);
  for (int i = 0; i < 50; i++) {
    limited l = {.pool = pool};
    tp_spawn_spec spec = {.poll = never, .arg = &l, .end = timed_out, .priority = TP_NORMAL};
    tp_task *t;
    assert_int_equal(tp_spawn(pool->tasks, &spec, &t), 0);
    assert_int_equal(tp_task_wait(t, 0), 0);
    assert_int_equal(tp_task_code(t), ERR_TIMEOUT);
    tp_task_unref(t);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void shutdown_ends_sleepers(void **state) {
  (void)state;
  threadpool_t *pool =
      threadpool_create_with(&(threadpool_options){.workers = 2, .drain_ms = -1}, NULL);
  static sleeper s[SLEEPERS];
  for (int i = 0; i < SLEEPERS; i++) {
    s[i] = (sleeper){.pool = pool, .until = tp_now_ns() + 3600 * TP_NS_PER_S};
    tp_spawn_spec spec = {
        .poll = sleep_task, .arg = &s[i], .end = sleep_end, .priority = TP_NORMAL};
    assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sleepers_wake_and_never_early),
      cmocka_unit_test(cancelled_sleepers_end_at_once),
      cmocka_unit_test(a_deadline_ends_a_task),
      cmocka_unit_test(shutdown_ends_sleepers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
