/* test_drain.c - what becomes of tasks when the pool is shut down: each ends exactly once, finished or
 * cancelled, however it spends its time.
 *
 * A task that was forgotten would be seen as a shutdown that does not return or as 0 ends, one that was ended
 * by two as 2. */
#include "test/help.h"

/* --- tasks of every kind */

typedef enum {
  FINISHES,             /* goes round until the shutdown has begun, then finishes */
  FINISHES_ON_A_THREAD, /* the same, blocking */
  WAITS,                /* for a wake that never comes */
  GOES_ROUND,           /* for ever */
  RUNS,                 /* until it is cancelled */
  RUNS_AND_FINISHES,    /* is cancelled while it runs, but has just finished */
  BLOCKS,               /* on a thread of its own, until it is cancelled */
  AWAITS,               /* a child that does not end by itself */
  SHIELDED,             /* has a critical section, which is on its way when the end is asked for */
  BREEDS,               /* spawns until it is told that there is no more of it */
  KINDS
} kind;

typedef struct {
  kind kind;
  bool finished; /* by itself */
  int left;      /* of the critical section, which has begun if it is not CRITICAL */
  tp_task *child;
  int code; /* as `end` has seen it */
  _Atomic int ends;
} record;

enum { CRITICAL = 100, CHILDREN_MOST = 20000, EACH = 3, RECORDS = KINDS * EACH, WORKERS = 3 };

static threadpool_t *pool;
static record records[RECORDS];
static _Atomic int running; /* those that keep a worker */
static _Atomic int children;
static _Atomic unsigned char child_ends[CHILDREN_MOST];

static void end_record(tp_task *t) {
  record *r = t->arg;
  r->code = tp_task_code(t);
  if (r->child) tp_task_unref(r->child);
  tp_add(&r->ends, 1, relaxed);
}
static void end_child(tp_task *t) {
  tp_add((_Atomic unsigned char *)t->arg, 1, relaxed);
}

static bool closing(void) {
  return tp_load(&pool->closing, acquire);
}
/* Also while a shield holds it off. */
static bool asked_to_end(tp_task *t) {
  return tp_load(&t->state, acquire) & TP_CANCELLED;
}

static tp_poll finish(record *r) {
  r->finished = true;
  return TP_READY;
}

static tp_poll wait_for_ever(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_PENDING;
}
static tp_poll finish_at_once(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}

/* ERR_QUEUE_FULL: there is no place to count one more. */
static int spawn_child(tp_task *t, tp_task **handle) {
  int i = tp_add(&children, 1, relaxed);
  if (i >= CHILDREN_MOST) {
    tp_sub(&children, 1, relaxed);
    return ERR_QUEUE_FULL;
  }
  tp_spawn_spec spec = {.poll = i % 2 || handle ? wait_for_ever : finish_at_once,
                        .arg = (void *)&child_ends[i],
                        .end = end_child,
                        .priority = (tp_priority)(i % TP_PRIORITIES)};
  int error = tp_spawn(t->tasks, &spec, handle);
  if (error) tp_add(&child_ends[i], 1, relaxed); /* nobody else will */
  return error;
}

static tp_poll breed(tp_task *t, record *r) {
  if (r->left == CRITICAL) tp_task_shield(t);
  r->left = 0;
  bool asked = asked_to_end(t);
  int error = spawn_child(t, NULL);
  test_must(error == 0 || error == ERR_SHUTDOWN || error == ERR_QUEUE_FULL);
  /* Whoever was asked to end has nothing more to begin. */
  test_must(!asked || error != 0);
  if (!asked) return TP_YIELD;
  tp_task_unshield(t);
  return TP_PENDING;
}

static bool keeps_a_worker(kind k) {
  return k == RUNS || k == RUNS_AND_FINISHES;
}

static tp_poll live(tp_task *t, void *arg) {
  record *r = arg;
  switch (r->kind) {
  case FINISHES: return closing() ? finish(r) : TP_YIELD;
  case FINISHES_ON_A_THREAD: test_wait(closing()); return finish(r);
  case WAITS: return TP_PENDING;
  case GOES_ROUND: return TP_YIELD;
  case RUNS_AND_FINISHES:
  case RUNS:
  case BLOCKS:
    if (keeps_a_worker(r->kind)) tp_add(&running, 1, relaxed);
    test_wait(tp_task_cancelled(t));
    return r->kind == RUNS_AND_FINISHES ? finish(r) : TP_PENDING;
  case AWAITS:
    if (!r->child && spawn_child(t, &r->child) != 0) return TP_PENDING;
    if (tp_task_await(t, r->child) == TP_PENDING) return TP_PENDING;
    return finish(r); /* the child was cancelled before it was */
  case SHIELDED:
    if (r->left == CRITICAL) tp_task_shield(t);
    test_must(!tp_task_cancelled(t));
    if (r->left == CRITICAL || asked_to_end(t)) r->left--;
    if (r->left > 0) return TP_YIELD;
    tp_task_unshield(t);
    return TP_PENDING;
  case BREEDS: return breed(t, r);
  default: return TP_READY;
  }
}

/* EACH of every kind that is in `kinds`, but not so many that they keep all workers for themselves. */
static void spawn_all(unsigned kinds) {
  running = children = 0;
  memset((void *)child_ends, 0, sizeof child_ends);
  int busy = 0;
  for (int i = 0; i < RECORDS; i++) {
    kind k = (kind)(i % KINDS);
    records[i] = (record){.kind = k, .left = CRITICAL};
    if (!(kinds >> k & 1) || (keeps_a_worker(k) && busy++ >= WORKERS - 1)) {
      records[i].kind = KINDS;
      continue;
    }
    tp_spawn_spec spec = {.poll = live,
                          .arg = &records[i],
                          .end = end_record,
                          .priority = (tp_priority)(i / KINDS % TP_PRIORITIES),
                          .blocking = k == BLOCKS || k == FINISHES_ON_A_THREAD};
    assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
  }
}

static void each_has_ended_once(void) {
  for (int i = 0; i < RECORDS; i++) {
    record *r = &records[i];
    if (r->kind == KINDS) continue;
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->code, r->finished ? 0 : ERR_CANCELLED);
    if (r->kind == SHIELDED) assert_true(r->left == CRITICAL || r->left == 0);
  }
  assert_in_range(children, 0, CHILDREN_MOST);
  for (int i = 0; i < CHILDREN_MOST; i++) assert_int_equal(child_ends[i], i < children);
}

#define ALL_KINDS ((1u << KINDS) - 1)
#define RUN_ON    (1u << RUNS | 1u << RUNS_AND_FINISHES)
#define GO_ROUND  (1u << GOES_ROUND | 1u << SHIELDED | 1u << BREEDS)

/* --- the tests */

/* A long deadline, and nothing that needs it: if the end of the last task did not end the drain, it would
 * last an hour. */
static void what_finishes_during_the_drain_is_not_cancelled(void **state) {
  (void)state;
  for (int i = 0; i < test_size(5, 50); i++) {
    pool = test_pool((threadpool_options){.workers = WORKERS, .drain_ms = 3600000});
    spawn_all(1u << FINISHES | 1u << FINISHES_ON_A_THREAD);
    assert_int_equal(threadpool_shutdown(pool), 0);
    each_has_ended_once();
    for (int k = 0; k < RECORDS; k++) assert_true(records[k].kind == KINDS || records[k].finished);
  }
}

/* Two mixtures: what waits in the ring of a worker that does not come back is taken by others only when they
 * have nothing to do, so those that run on and those that go round are not together. What finishes has
 * DRAIN_MS for it, and needs one poll. */
static void the_deadline_of_the_drain_cancels_the_rest(void **state) {
  (void)state;
  enum { DRAIN_MS = 1500 };
  const unsigned mixtures[] = {ALL_KINDS & ~RUN_ON, ALL_KINDS & ~GO_ROUND};
  for (int m = 0; m < 2; m++) {
    pool = test_pool((threadpool_options){.workers = WORKERS, .drain_ms = DRAIN_MS});
    spawn_all(mixtures[m]);
    uint64_t began = tp_now_ns();
    assert_int_equal(threadpool_shutdown(pool), 0);
    assert_true(tp_now_ns() - began >= DRAIN_MS * TP_NS_PER_MS);
    each_has_ended_once();
    assert_true(children > 0);
    for (int i = 0; i < RECORDS; i++) {
      record *r = &records[i];
      if (r->kind == KINDS || r->kind == AWAITS)
        continue; /* AWAITS: whichever is cancelled first */
      assert_int_equal(r->finished, r->kind == FINISHES || r->kind == FINISHES_ON_A_THREAD ||
                                        r->kind == RUNS_AND_FINISHES);
      if (r->kind == SHIELDED || r->kind == BREEDS) assert_int_equal(r->left, 0);
    }
  }
}

/* Cancellation comes at any moment: before the first poll, in a critical section, between a spawn and the
 * await of it. */
static void a_shutdown_without_a_drain_ends_every_task_once(void **state) {
  (void)state;
  for (int i = 0; i < test_size(20, 400); i++) {
    pool = test_pool((threadpool_options){.workers = WORKERS, .drain_ms = -1});
    spawn_all(i % 2 ? ALL_KINDS : ALL_KINDS & ~RUN_ON);
    /* Let them come as far as that. */
    if (i % 2)
      test_wait(tp_load(&running, relaxed) >= i / 2 % WORKERS);
    else
      test_wait(tp_load(&children, relaxed) >= i / 2 % 5 * 100);
    assert_int_equal(threadpool_shutdown(pool), 0);
    each_has_ended_once();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_finishes_during_the_drain_is_not_cancelled),
      cmocka_unit_test(the_deadline_of_the_drain_cancels_the_rest),
      cmocka_unit_test(a_shutdown_without_a_drain_ends_every_task_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
