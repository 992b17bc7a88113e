/* test_task.c - tasks: wakes, await, yield, cancellation, shields, blocking, shutdown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/pool.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "test/help.h"

static long scale(long normal) {
  if (getenv("TP_QUICK")) return normal / 20 ? normal / 20 : 1;
  return getenv("TP_STRESS") ? normal * 10 : normal;
}

static threadpool_t *pool_with(threadpool_options o) {
  threadpool_t *pool = threadpool_create_with(&o, NULL);
  assert_non_null(pool);
  return pool;
}

static tp_task *spawn(threadpool_t *pool, tp_spawn_spec spec) {
  tp_task *t = NULL;
  assert_int_equal(tp_spawn(pool->tasks, &spec, &t), 0);
  assert_non_null(t);
  return t;
}

static int wait_code(tp_task *t) {
  assert_int_equal(tp_task_wait(t, 0), 0);
  int code = tp_task_code(t);
  tp_task_unref(t);
  return code;
}

static tp_poll add_one(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic long *)arg, 1, relaxed);
  return TP_READY;
}

static tp_poll ready_at_once(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}

/* --- spawn and await, ping-pong by wakers, yield */

typedef struct {
  int depth;
  long sum;
  tp_task *child[2];
  void *kid[2];
  int state;
} tree;
static tp_poll tree_task(tp_task *t, void *arg) {
  tree *n = arg;
  if (n->depth == 0) {
    n->sum = 1;
    return TP_READY;
  }
  if (n->state == 0) {
    for (int i = 0; i < 2; i++) {
      tree *kid = calloc(1, sizeof *kid);
      kid->depth = n->depth - 1;
      n->kid[i] = kid;
      tp_spawn_spec spec = {.poll = tree_task, .arg = kid, .priority = TP_NORMAL};
      if (tp_spawn(t->tasks, &spec, &n->child[i]) != 0) abort();
    }
    n->state = 1;
    n->sum = 1;
  }
  for (; n->state <= 2; n->state++) {
    int i = 2 - n->state; /* the newest first: it is in the LIFO slot */
    if (tp_task_await(t, n->child[i]) == TP_PENDING) return TP_PENDING;
    n->sum += ((tree *)n->kid[i])->sum;
    free(n->kid[i]);
    tp_task_unref(n->child[i]);
  }
  return TP_READY;
}
static void tasks_await_their_children(void **state) {
  (void)state;
  for (int workers = 1; workers <= 3; workers++) {
    threadpool_t *pool = pool_with((threadpool_options){.workers = workers});
    for (int i = 0; i < scale(20); i++) {
      tree root = {.depth = 10};
      wait_code(
          spawn(pool, (tp_spawn_spec){.poll = tree_task, .arg = &root, .priority = TP_NORMAL}));
      assert_int_equal(root.sum, 2047);
    }
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

/* Two tasks that only ever run when the other one wakes them. A lost wake would end in a hang. */
typedef struct {
  _Atomic(tp_task *) other;
  _Atomic long *turns;
  long me, end;
} pong;
static tp_poll pong_task(tp_task *t, void *arg) {
  (void)t;
  pong *p = arg;
  tp_task *other = tp_load(&p->other, acquire);
  if (!other) return TP_YIELD; /* not yet introduced */
  long turn = tp_load(p->turns, acquire);
  if (turn % 2 == p->me && turn < p->end) turn = tp_add(p->turns, 1, acq_rel) + 1;
  if (turn % 2 != p->me || turn >= p->end) tp_task_wake(other);
  return turn >= p->end ? TP_READY : TP_PENDING;
}
static void wakes_are_never_lost(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 2});
  _Atomic long turns = 0;
  pong a = {NULL, &turns, 0, scale(100000)}, b = {NULL, &turns, 1, a.end};
  tp_task *ta = spawn(pool, (tp_spawn_spec){.poll = pong_task, .arg = &a, .priority = TP_NORMAL});
  tp_task *tb = spawn(pool, (tp_spawn_spec){.poll = pong_task, .arg = &b, .priority = TP_NORMAL});
  tp_store(&a.other, tb, release);
  tp_store(&b.other, ta, release);
  tp_task_wait(ta, 0);
  tp_task_wait(tb, 0);
  assert_int_equal(turns, a.end);
  tp_task_unref(ta);
  tp_task_unref(tb);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static tp_poll yield_some(tp_task *t, void *arg) {
  (void)t;
  return --*(int *)arg ? TP_YIELD : TP_READY;
}
static void yields_go_round(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 2});
  tp_task *t[100];
  int left[100];
  for (int i = 0; i < 100; i++) {
    left[i] = 1000;
    t[i] = spawn(pool, (tp_spawn_spec){.poll = yield_some, .arg = &left[i], .priority = TP_NORMAL});
  }
  for (int i = 0; i < 100; i++) assert_int_equal(wait_code(t[i]), 0);
  for (int i = 0; i < 100; i++) assert_int_equal(left[i], 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- cancellation */

static _Atomic int polls, ends;
static void count_end(tp_task *t) {
  (void)t;
  tp_add(&ends, 1, relaxed);
}
static tp_poll pend(tp_task *t, void *arg) {
  (void)t, (void)arg;
  tp_add(&polls, 1, relaxed);
  return TP_PENDING;
}
static tp_poll spin_until(tp_task *t, void *arg) {
  (void)t;
  while (!tp_load((_Atomic bool *)arg, acquire)) tp_pause();
  return TP_READY;
}
static tp_poll until_cancelled(tp_task *t, void *arg) {
  tp_store((_Atomic bool *)arg, true, release);
  while (!tp_task_cancelled(t)) tp_pause();
  return TP_PENDING;
}
static void cancelling_ends_queued_waiting_and_running_tasks(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 1});
  ends = polls = 0;
  _Atomic bool go = false;
  tp_task *busy =
      spawn(pool, (tp_spawn_spec){.poll = spin_until, .arg = (void *)&go, .priority = TP_NORMAL});
  tp_task *queued =
      spawn(pool, (tp_spawn_spec){.poll = pend, .end = count_end, .priority = TP_NORMAL});
  uint64_t id = tp_task_id(queued);
  assert_true(id < 1ull << 53);
  assert_true(tp_task_cancel(queued));
  tp_store(&go, true, release);
  assert_int_equal(wait_code(busy), 0);
  assert_int_equal(wait_code(queued), ERR_CANCELLED);
  assert_int_equal(polls, 0); /* it never ran */
  assert_int_equal(ends, 1);
  /* A stale id is recognised, once whoever ended the task has given up its own reference. */
  for (tp_task *stale; (stale = tp_task_find(pool->tasks, id));) {
    assert_true(tp_task_over(stale));
    tp_task_unref(stale);
  }

  tp_task *waiting =
      spawn(pool, (tp_spawn_spec){.poll = pend, .end = count_end, .priority = TP_NORMAL});
  while (tp_lifecycle(tp_load(&waiting->state, acquire)) != TP_IDLE) tp_pause();
  tp_task *found = tp_task_find(pool->tasks, tp_task_id(waiting));
  assert_ptr_equal(found, waiting);
  assert_int_equal(tp_task_wait(waiting, tp_now_ns() + TP_NS_PER_MS), ERR_TIMEOUT);
  assert_true(tp_task_cancel(found));
  tp_task_unref(found);
  assert_int_equal(wait_code(waiting), ERR_CANCELLED);
  assert_int_equal(ends, 2);

  _Atomic bool runs = false;
  tp_task *running = spawn(
      pool, (tp_spawn_spec){.poll = until_cancelled, .arg = (void *)&runs, .priority = TP_NORMAL});
  while (!tp_load(&runs, acquire)) tp_pause();
  assert_true(tp_task_cancel(running));
  assert_int_equal(wait_code(running), ERR_CANCELLED);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static tp_poll shielded(tp_task *t, void *arg) {
  _Atomic int *step = arg;
  if (tp_load(step, acquire) == 0) {
    tp_task_shield(t);
    tp_store(step, 1, release);
    return TP_PENDING;
  }
  assert_false(tp_task_cancelled(t)); /* asked for, but held off */
  tp_task_unshield(t);
  assert_true(tp_task_cancelled(t));
  tp_store(step, 2, release);
  return TP_PENDING;
}
static void a_shield_holds_cancellation_off(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 1});
  _Atomic int step = 0;
  tp_task *t =
      spawn(pool, (tp_spawn_spec){.poll = shielded, .arg = (void *)&step, .priority = TP_NORMAL});
  while (tp_lifecycle(tp_load(&t->state, acquire)) != TP_IDLE) tp_pause();
  assert_true(tp_task_cancel(t));
  assert_int_equal(wait_code(t), ERR_CANCELLED);
  assert_int_equal(step, 2);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- blocking, substitutes, shutdown */

static tp_poll block_until(tp_task *t, void *arg) {
  (void)t;
  while (!tp_load((_Atomic bool *)arg, acquire)) usleep(100);
  return TP_READY;
}
static void blocking_tasks_hold_no_worker(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 1, .blocking = 4});
  _Atomic bool go = false;
  tp_task *t[8];
  for (int i = 0; i < 8; i++)
    t[i] = spawn(pool, (tp_spawn_spec){.poll = block_until,
                                       .arg = (void *)&go,
                                       .blocking = true,
                                       .priority = TP_NORMAL});
  _Atomic long done = 0;
  assert_int_equal(
      wait_code(spawn(
          pool, (tp_spawn_spec){.poll = add_one, .arg = (void *)&done, .priority = TP_NORMAL})),
      0);
  assert_int_equal(done, 1);
  tp_store(&go, true, release);
  for (int i = 0; i < 8; i++) assert_int_equal(wait_code(t[i]), 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

typedef struct {
  threadpool_t *pool;
  int result;
} waiting;
static tp_poll wait_inside(tp_task *t, void *arg) {
  (void)t;
  waiting *w = arg;
  _Atomic long done = 0;
  tp_task *child = NULL;
  tp_spawn_spec spec = {.poll = add_one, .arg = (void *)&done, .priority = TP_NORMAL};
  if (tp_spawn(w->pool->tasks, &spec, &child) != 0) abort();
  w->result = tp_task_wait(child, 0);
  if (w->result != 0) /* it goes on alone, and still uses our stack */
    while (!tp_task_over(child)) tp_pause();
  tp_task_unref(child);
  return TP_READY;
}
static void a_waiting_worker_gives_its_seat_away(void **state) {
  (void)state;
  threadpool_t *pool = pool_with((threadpool_options){.workers = 1, .blocking = 8});
  for (int i = 0; i < scale(200); i++) {
    waiting w = {pool, 1};
    assert_int_equal(
        wait_code(
            spawn(pool, (tp_spawn_spec){.poll = wait_inside, .arg = &w, .priority = TP_NORMAL})),
        0);
    assert_int_equal(w.result, 0);
  }
  threadpool_counters c;
  assert_int_equal(threadpool_stats(pool, -1, &c), 0);
  assert_true(c.substitutes > 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void shutdown_ends_every_task_once(void **state) {
  (void)state;
  for (int i = 0; i < scale(200); i++) {
    threadpool_t *pool = pool_with((threadpool_options){.workers = 2, .drain_ms = -1});
    ends = 0;
    for (int k = 0; k < 100; k++) {
      tp_spawn_spec spec = {.poll = pend, .end = count_end, .priority = (tp_priority)(k % 3)};
      assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
    }
    assert_int_equal(threadpool_shutdown(pool), 0);
    assert_int_equal(ends, 100);
  }
}

static void *drain_at_once(void *arg) {
  tp_tasks_drain(arg, 0);
  return NULL;
}
/* K1. Wrong: a cancel, a wake, or a drain that cancels all ends it, and who made it goes on with what is gone. */
static void a_task_that_has_not_begun_does_not_end(void **state) {
  (void)state;
  for (int kind = 0; kind < 4; kind++) {
    threadpool_t *pool = pool_with((threadpool_options){.workers = 1});
    _Atomic long done = 0;
    ends = 0;
    tp_spawn_spec spec = {.poll = add_one,
                          .arg = (void *)&done,
                          .end = count_end,
                          .priority = TP_NORMAL,
                          .blocking = kind == 3};
    int error = 1;
    tp_task *t = tp_task_new(pool->tasks, &spec, &error);
    assert_non_null(t);
    assert_int_equal(error, 0);
    tp_task_ref(t); /* ours: it is asked for its code */
    pthread_t thread;
    if (kind == 0) tp_task_wake(t);
    if (kind == 1 || kind == 3) assert_true(tp_task_cancel(t));
    if (kind == 2) {
      assert_int_equal(pthread_create(&thread, NULL, drain_at_once, pool->tasks), 0);
      test_wait(tp_task_cancelled(t));
      usleep(5000);
    } else { /* what came before it on the only worker is over, too */
      assert_int_equal(
          wait_code(spawn(pool, (tp_spawn_spec){.poll = ready_at_once, .priority = TP_NORMAL})), 0);
    }
    assert_false(tp_task_over(t));
    assert_int_equal(ends, 0);
    tp_task_post(t);
    assert_int_equal(wait_code(t), kind == 0 ? 0 : ERR_CANCELLED);
    assert_int_equal(done, kind == 0);
    assert_int_equal(ends, 1);
    if (kind == 2) pthread_join(thread, NULL);
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

static void spawning_survives_every_failure(void **state) {
  (void)state;
  for (long nth = 1; nth < 20; nth++) {
    threadpool_t *pool = pool_with((threadpool_options){.workers = 1});
    _Atomic long done = 0;
    int refused = 0;
    tp_fail_at(nth);
    for (int i = 0; i < 200; i++) {
      tp_spawn_spec spec = {
          .poll = add_one, .arg = (void *)&done, .blocking = i % 2, .priority = TP_NORMAL};
      int error = tp_spawn(pool->tasks, &spec, NULL);
      if (error) {
        assert_int_equal(error, ERR_MALLOC_FAILED);
        refused++;
      }
    }
    tp_fail_at(0);
    assert_int_equal(threadpool_shutdown(pool), 0);
    assert_int_equal(done + refused, 200);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tasks_await_their_children),
      cmocka_unit_test(wakes_are_never_lost),
      cmocka_unit_test(yields_go_round),
      cmocka_unit_test(cancelling_ends_queued_waiting_and_running_tasks),
      cmocka_unit_test(a_shield_holds_cancellation_off),
      cmocka_unit_test(blocking_tasks_hold_no_worker),
      cmocka_unit_test(a_waiting_worker_gives_its_seat_away),
      cmocka_unit_test(shutdown_ends_every_task_once),
      cmocka_unit_test(a_task_that_has_not_begun_does_not_end),
      cmocka_unit_test(spawning_survives_every_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
