/* test_paths.c - every way that work can take, and every reason for a wake, is really taken: one pool, and
 * the statistics at the end.
 *
 * Each part makes the condition in which its counters have to grow, with workers that are held where they
 * would be in the way, and does so again until they have. A path that is dead, or a counter that is not
 * kept, is seen as a counter that stays 0, by name. */
#include "test/help.h"

#include "threadpool_fork.h"

enum { WORKERS = 4, MANY = 600, PATIENCE_S = 60 };

static threadpool_t *pool;

/* --- tasks that count, and tasks that hold a worker */

static tp_poll count(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic int *)arg, 1, release);
  return TP_READY;
}

static void spawn_count(_Atomic int *done, tp_priority p) {
  tp_spawn_spec spec = {.poll = count, .arg = (void *)done, .priority = p};
  test_must(tp_spawn(pool->tasks, &spec, NULL) == 0);
}

static _Atomic int held;
static _Atomic bool let_go;

static tp_poll hold_worker(tp_task *t, void *arg) {
  (void)t, (void)arg;
  tp_add(&held, 1, release);
  test_wait(tp_load(&let_go, acquire));
  tp_sub(&held, 1, release);
  return TP_READY;
}

/* So many workers do nothing until release(). */
static void hold(int n) {
  tp_store(&let_go, false, release);
  for (int i = 0; i < n; i++) {
    tp_spawn_spec spec = {.poll = hold_worker, .priority = TP_NORMAL};
    assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
  }
  test_wait(tp_load(&held, acquire) == n);
}

static void release(void) {
  tp_store(&let_go, true, release);
  test_wait(tp_load(&held, acquire) == 0);
}

/* --- tasks */

static tp_poll spawn_many(tp_task *t, void *arg) {
  (void)t;
  for (int i = 0; i < MANY; i++) spawn_count(arg, TP_NORMAL);
  return TP_READY;
}
/* Nobody else is there to relieve the ring, and it has 256 places. */
static void overflow_a_ring(void) {
  _Atomic int done = 0;
  hold(WORKERS - 1);
  test_end_of(test_spawn(pool, spawn_many, (void *)&done));
  test_wait(tp_load(&done, acquire) == MANY);
  release();
}

static void fill_the_global_queues(void) {
  _Atomic int done = 0;
  hold(WORKERS);
  for (int i = 0; i < MANY; i++) spawn_count(&done, (tp_priority)(i % TP_PRIORITIES));
  release();
  test_wait(tp_load(&done, acquire) == MANY);
}

/* Each link of the chain is in the LIFO slot when its turn comes, while another task waits in the ring. */
typedef struct {
  _Atomic int done;
  int links;
} streak;
static tp_poll chain(tp_task *t, void *arg) {
  streak *s = arg;
  if (--s->links == 0) {
    test_must(tp_load(&s->done, relaxed) == 1); /* the other one went before */
    return count(t, (void *)&s->done);
  }
  tp_spawn_spec spec = {.poll = chain, .arg = s, .priority = TP_NORMAL};
  test_must(tp_spawn(t->tasks, &spec, NULL) == 0);
  return TP_READY;
}
static tp_poll begin_chain(tp_task *t, void *arg) {
  spawn_count(&((streak *)arg)->done, TP_NORMAL);
  return chain(t, arg);
}
static void use_the_lifo_slot_too_often(void) {
  streak s = {0, 10};
  hold(WORKERS - 1);
  test_end_of(test_spawn(pool, begin_chain, &s));
  test_wait(tp_load(&s.done, acquire) == 2);
  release();
}

/* The children can only be run by somebody else. */
static tp_poll wait_for_one_child(tp_task *t, void *arg) {
  (void)t;
  spawn_count(arg, TP_NORMAL);
  test_wait(tp_load((_Atomic int *)arg, acquire) == 1);
  return TP_READY;
}
static void leave_a_task_in_the_lifo_slot(void) {
  _Atomic int done = 0;
  test_wait(test_all_parked(pool));
  test_end_of(test_spawn(pool, wait_for_one_child, (void *)&done));
}

typedef struct {
  _Atomic int begun, over;
} crowd;
static tp_poll meet(tp_task *t, void *arg) {
  crowd *c = arg;
  tp_add(&c->begun, 1, relaxed);
  test_wait(tp_load(&c->begun, relaxed) >= WORKERS - 1);
  return count(t, (void *)&c->over);
}
static tp_poll wait_for_others(tp_task *t, void *arg) {
  for (int i = 0; i < 2 * WORKERS; i++) {
    tp_spawn_spec spec = {.poll = meet, .arg = arg, .priority = TP_NORMAL};
    test_must(tp_spawn(t->tasks, &spec, NULL) == 0);
  }
  test_wait(tp_load(&((crowd *)arg)->over, acquire) == 2 * WORKERS);
  return TP_READY;
}
/* Whoever comes for half of the ring sees that there is more than it takes, and all others asleep. */
static void leave_tasks_in_a_ring(void) {
  crowd c = {0};
  test_wait(test_all_parked(pool));
  test_end_of(test_spawn(pool, wait_for_others, &c));
}

static void post_to_sleepers(void) {
  _Atomic int done = 0;
  test_wait(test_all_parked(pool));
  spawn_count(&done, TP_NORMAL);
  test_wait(tp_load(&done, acquire) == 1);
  test_wait(test_all_parked(pool));
}

static tp_poll wait_in_a_seat(tp_task *t, void *arg) {
  (void)t;
  tp_task *child = NULL;
  tp_spawn_spec spec = {.poll = count, .arg = arg, .priority = TP_NORMAL};
  test_must(tp_spawn(pool->tasks, &spec, &child) == 0);
  test_must(tp_task_wait(child, 0) == 0);
  tp_task_unref(child);
  return TP_READY;
}
static void give_a_seat_away(void) {
  _Atomic int done = 0;
  test_end_of(test_spawn(pool, wait_in_a_seat, (void *)&done));
}

/* --- jobs */

typedef struct {
  _Atomic bool begun, helped;
  uint64_t waited;
  bool more;
} meeting;

static void begin_b(threadpool_worker *w, void *arg) {
  (void)w;
  tp_store(&((meeting *)arg)->begun, true, release);
}
static void wait_for_b(threadpool_worker *w, void *arg) {
  (void)w;
  test_wait(tp_load(&((meeting *)arg)->begun, acquire));
}
static void join_b(threadpool_worker *w, void *arg) {
  test_must(threadpool_join(w, wait_for_b, arg, begin_b, arg) == 0);
}
static void let_a_job_be_stolen(void) {
  meeting m = {0};
  assert_int_equal(threadpool_call(pool, join_b, &m), 0);
}

static void help(threadpool_worker *w, void *arg) {
  (void)w;
  tp_store(&((meeting *)arg)->helped, true, release);
}
static void wait_for_help(threadpool_worker *w, void *arg) {
  (void)w;
  test_wait(tp_load(&((meeting *)arg)->helped, acquire));
}
static void b_until_a_waits(threadpool_worker *w, void *arg) {
  meeting *m = arg;
  begin_b(w, m);
  test_wait(test_stats(pool).waited > m->waited);
  if (m->more) test_must(threadpool_join(w, wait_for_help, m, help, m) == 0);
}
static void join_long_b(threadpool_worker *w, void *arg) {
  test_must(threadpool_join(w, wait_for_b, arg, b_until_a_waits, arg) == 0);
}
static void wait_for_a_stolen_job(void) {
  meeting m = {.waited = test_stats(pool).waited};
  assert_int_equal(threadpool_call(pool, join_long_b, &m), 0);
}
/* One worker runs B, the others are held: only the thread that waits for B is there to help it. */
static void wake_a_waiter(void) {
  meeting m = {.waited = test_stats(pool).waited, .more = true};
  hold(WORKERS - 1);
  assert_int_equal(threadpool_call(pool, join_long_b, &m), 0);
  release();
}

static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}
/* The same function for short runs and for one that needs the wake. */
static void join_nothing_or_b(threadpool_worker *w, void *arg) {
  if (arg)
    join_b(w, arg);
  else
    test_must(threadpool_join(w, nothing, NULL, nothing, NULL) == 0);
}
static void fork_in_short_runs(void) {
  for (int i = 0; i < 8; i++) {
    test_wait(test_all_parked(pool));
    assert_int_equal(threadpool_call(pool, join_nothing_or_b, NULL), 0);
  }
}
static void fork_in_a_long_run_after_short_ones(void) {
  meeting m = {0};
  fork_in_short_runs();
  test_wait(test_all_parked(pool));
  assert_int_equal(threadpool_call(pool, join_nothing_or_b, &m), 0);
}

/* More than one updater can see to at once; then nothing, so that they end. */
static void send_a_backlog(void) {
  enum { N = 4096 };
  static threadpool_request q[N];
  static uint64_t ids[N];
  for (int i = 0; i < N; i++) q[i].json = "{\"op\": \"echo\", \"args\": {\"a\": [1, 2, 3]}}";
  test_wait(test_all_parked(pool));
  assert_int_equal(threadpool_submit_batch(pool, q, N, ids), N);
  for (int i = 0; i < N; i++)
    threadpool_result_free(threadpool_wait_result(pool, ids[i], UINT32_MAX));
}

/* --- all of them */

static uint64_t value(size_t at) {
  threadpool_counters c = test_stats(pool);
  return *(uint64_t *)((char *)&c + at);
}

static void every_path_is_taken(void **state) {
  (void)state;
  static const struct {
    const char *counter;
    size_t at;
    void (*part)(void);
  } paths[] = {
#define PATH(name, part) {#name, offsetof(threadpool_counters, name), part}
      PATH(overflowed, overflow_a_ring),
      PATH(batches, fill_the_global_queues),
      PATH(from_high, fill_the_global_queues),
      PATH(from_normal, fill_the_global_queues),
      PATH(from_low, fill_the_global_queues),
      PATH(lifo_capped, use_the_lifo_slot_too_often),
      PATH(lifo_stolen, leave_a_task_in_the_lifo_slot),
      PATH(half_steals, leave_tasks_in_a_ring),
      PATH(wakes_by_finder, leave_tasks_in_a_ring),
      PATH(parked, post_to_sleepers),
      PATH(woken, post_to_sleepers),
      PATH(wakes_by_post, post_to_sleepers),
      PATH(substitutes, give_a_seat_away),
      PATH(jobs_stolen, let_a_job_be_stolen),
      PATH(stolen, let_a_job_be_stolen),
      PATH(executed, let_a_job_be_stolen),
      PATH(exposed, let_a_job_be_stolen),
      PATH(waited, wait_for_a_stolen_job),
      PATH(wakes_of_waiter, wake_a_waiter),
      PATH(wakes_deferred, fork_in_short_runs),
      PATH(wakes_by_alarm, fork_in_a_long_run_after_short_ones),
      PATH(decoded, send_a_backlog),
      PATH(splits, send_a_backlog),
      PATH(merges, send_a_backlog),
#undef PATH
  };
  /* Each counter has its path. */
  assert_int_equal(sizeof paths / sizeof *paths, sizeof(threadpool_counters) / sizeof(uint64_t));

  pool = test_pool((threadpool_options){.workers = WORKERS});
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    uint64_t before = value(paths[i].at), since = tp_now_ns();
    do {
      if (tp_now_ns() > since + PATIENCE_S * TP_NS_PER_S)
        fail_msg("%s does not grow", paths[i].counter);
      paths[i].part();
    } while (value(paths[i].at) == before);
  }
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
    if (value(paths[i].at) == 0) fail_msg("%s is 0", paths[i].counter);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_path_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
